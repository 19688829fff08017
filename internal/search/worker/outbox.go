package worker

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// patience is the time for which a search waits for its client to read results. zoekt runs only as many searches
	// as there are CPUs, so a search that waits for a slow client would keep others from running.
	patience = 20 * time.Millisecond
	// maxWaiting is the number of bytes in memory for one socket above which a search waits nevertheless.
	maxWaiting = 16 << 20
)

// outbox writes to a socket. Bytes that the socket does not take at once wait in memory. Written to by one goroutine at
// a time.
type outbox struct {
	conn    net.Conn
	raw     syscall.RawConn // of conn, or nil
	total   *atomic.Int64   // waiting bytes of all sockets
	most    int64           // limit of total for a socket that already has waiting bytes
	running sync.WaitGroup

	mu       sync.Mutex
	moved    sync.Cond // on mu; signals that waiting has become shorter
	waiting  []byte
	draining bool // drain runs
	err      error
}

func newOutbox(c net.Conn, total *atomic.Int64, most int64) *outbox {
	o := &outbox{conn: c, total: total, most: most}
	if s, ok := c.(syscall.Conn); ok {
		o.raw, _ = s.SyscallConn()
	}
	o.moved.L = &o.mu
	return o
}

// Write implements io.Writer. Its error may be that of an earlier write.
func (o *outbox) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	size := len(p)
	if !o.draining && o.err == nil {
		if p = p[o.writeNow(p):]; len(p) == 0 {
			return size, nil
		}
		o.conn.SetWriteDeadline(time.Now().Add(patience))
		n, err := o.conn.Write(p)
		p = p[n:]
		if err == nil {
			return size, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			o.err = err
			return size - len(p), err
		}
		o.conn.SetWriteDeadline(time.Time{})
		o.draining = true
		o.running.Go(o.drain)
	}
	for o.err == nil && len(o.waiting) > 0 && (len(o.waiting) > maxWaiting || o.total.Load() > o.most) {
		o.moved.Wait()
	}
	if o.err != nil {
		return 0, o.err
	}
	o.waiting = append(o.waiting, p...)
	o.total.Add(int64(len(p)))
	return size, nil
}

// writeNow writes the bytes that the socket takes at once, without a timer. An error recurs in the next write.
func (o *outbox) writeNow(p []byte) (n int) {
	if o.raw == nil {
		return 0
	}
	o.raw.Write(func(fd uintptr) bool {
		n, _ = unix.Write(int(fd), p)
		return true
	})
	return max(n, 0)
}

// drain writes until no bytes wait.
func (o *outbox) drain() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.err == nil && len(o.waiting) > 0 {
		next := o.waiting
		o.waiting = nil
		o.moved.Broadcast()
		o.mu.Unlock()
		_, err := o.conn.Write(next)
		o.mu.Lock()
		o.total.Add(-int64(len(next)))
		o.err = err
	}
	o.total.Add(-int64(len(o.waiting)))
	o.waiting, o.draining = nil, false
	o.moved.Broadcast()
}
