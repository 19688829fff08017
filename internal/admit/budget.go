package admit

import (
	"sync/atomic"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Budget bounds how much of something, as bytes of memory, all requests together may hold. Like a Lane it refuses at once what
// does not fit. Safe for concurrent use.
type Budget struct {
	name    string
	limit   int64
	used    atomic.Int64
	refused atomic.Int64
}

// NewBudget makes a budget of limit.
func NewBudget(name string, limit int64) *Budget { return &Budget{name: name, limit: limit} }

// Take takes n, or nothing and gives an error of kind Exhausted. Whoever took gives back.
func (b *Budget) Take(n int64) error {
	for used := b.used.Load(); n <= b.limit-used; used = b.used.Load() {
		if b.used.CompareAndSwap(used, used+n) {
			return nil
		}
	}
	b.refused.Add(1)
	return fault.Retry(fault.Exhausted, retryAfter, "too many large %s at the same time; try again", b.name)
}

// Give gives n back.
func (b *Budget) Give(n int64) { b.used.Add(-n) }
