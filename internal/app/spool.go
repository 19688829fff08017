package app

import (
	"sync/atomic"
)

// budget bounds bytes on disk, of all requests together.
type budget struct {
	limit int64
	used  atomic.Int64
}

// take takes n, or nothing.
func (b *budget) take(n int64) bool {
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		return false
	}
	return true
}

func (b *budget) give(n int64) { b.used.Add(-n) }
