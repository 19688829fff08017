package gitssh

import (
	"errors"
	"sync/atomic"
)

// A client may send up to the window of each session, 2 MiB, before it is read. The SSH library keeps these bytes, in
// packets of one byte or more. The bytes that came over the wire bound what it keeps. The limit of a connection is
// sessionBacklog for each session and one more. Once all connections together have allBacklog, it is leastBacklog.
const (
	sessionBacklog = 4 << 20
	allBacklog     = 1 << 30
	leastBacklog   = 256 << 10

	closedBacklog = -1
)

// errBacklog ends a connection whose client sends more than the server reads.
var errBacklog = errors.New("the client sends more than the server reads")

// backlog estimates how many bytes of a connection are still unread. It never estimates too few. Safe for concurrent
// use.
type backlog struct {
	bytes atomic.Int64
	all   *atomic.Int64 // of all connections
}

// received counts n received bytes. It fails if the backlog is too large for the number of sessions.
func (b *backlog) received(n int, sessions int64) error {
	held := b.add(int64(n))
	if held > (sessions+1)*sessionBacklog || held > leastBacklog && b.all.Load() > allBacklog {
		return errBacklog
	}
	return nil
}

// read counts bytes that a session has read. Up to four times as many may have come over the wire: headers, padding,
// and MACs of small packets.
func (b *backlog) read(n int) { b.add(-4 * int64(n)) }

// sent counts bytes sent to the client. The client acknowledges them in messages that no session reads.
func (b *backlog) sent(n int) { b.add(-int64(n/64 + 64)) }

// ended counts the end of a session, with its unread bytes.
func (b *backlog) ended() { b.add(-sessionBacklog) }

// close ends the count: all bytes are released, and later calls do nothing.
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
