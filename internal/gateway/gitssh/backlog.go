package gitssh

import (
	"errors"
	"sync/atomic"
)

// A client may send as much on each session as its window has, 2 MiB, before anybody reads it, and the library keeps
// it, in packets that may be of one byte each. What is kept is bounded by what came over the wire: for one connection
// by sessionBacklog for each of its sessions and one more, and once all connections together have allBacklog, by
// leastBacklog for each.
const (
	sessionBacklog = 4 << 20
	allBacklog     = 1 << 30
	leastBacklog   = 256 << 10

	closedBacklog = -1
)

// errBacklog ends a connection whose client sends what nobody reads.
var errBacklog = errors.New("the client sends more than is read")

// backlog is about how many bytes of a connection nobody has read yet, never less. Safe for concurrent use.
type backlog struct {
	bytes atomic.Int64
	all   *atomic.Int64 // of all connections
}

// came counts bytes of the wire, and tells whether they are too many for so many sessions.
func (b *backlog) came(n int, sessions int64) error {
	held := b.add(int64(n))
	if held > (sessions+1)*sessionBacklog || held > leastBacklog && b.all.Load() > allBacklog {
		return errBacklog
	}
	return nil
}

// read counts bytes that a session has read. Four times as many may have come for them: headers, padding and sums of
// small packets.
func (b *backlog) read(n int) { b.add(-4 * int64(n)) }

// sent counts bytes that the client was sent, which it has acknowledged in messages that no session reads.
func (b *backlog) sent(n int) { b.add(-int64(n/64 + 64)) }

// ended counts a session that is over, with all that it had.
func (b *backlog) ended() { b.add(-sessionBacklog) }

// close forgets all; nothing counts any more.
func (b *backlog) close() {
	if held := b.bytes.Swap(closedBacklog); held > 0 {
		b.all.Add(-held)
	}
}

func (b *backlog) add(n int64) int64 {
	for {
		old := b.bytes.Load()
		if old == closedBacklog {
			return 0
		}
		next := max(0, old+n)
		if b.bytes.CompareAndSwap(old, next) {
			b.all.Add(next - old)
			return next
		}
	}
}
