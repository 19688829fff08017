package worker

import (
	"net"
	"sync"
	"sync/atomic"
)

// maxWaiting is the number of bytes in memory for one socket above which a search waits until its client has read some.
// zoekt runs only as many searches as there are CPUs, so a search that waits for a slow client keeps others from
// running.
const maxWaiting = 16 << 20

// outbox writes to a socket. During a search, bytes wait in memory until another goroutine has written them. After the
// search, Write itself waits for the socket, so most responses need no other goroutine. Written to by one goroutine at
// a time.
type outbox struct {
	conn      net.Conn
	searching bool          // a search runs; set between writes
	total     *atomic.Int64 // waiting bytes of all sockets
	most      int64         // limit of total for a socket that already has waiting bytes
	running   sync.WaitGroup

	mu       sync.Mutex
	moved    sync.Cond // on mu; signals that waiting has become shorter
	waiting  []byte
	draining bool // drain runs
	err      error
}

func newOutbox(c net.Conn, total *atomic.Int64, most int64) *outbox {
	o := &outbox{conn: c, total: total, most: most}
	o.moved.L = &o.mu
	return o
}

// Write implements io.Writer. Its error is that of an earlier write.
func (o *outbox) Write(p []byte) (int, error) {
	if !o.searching {
		if o.running.Wait(); o.err != nil {
			return 0, o.err
		}
		return o.conn.Write(p)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.err == nil && len(o.waiting) > 0 && (len(o.waiting) > maxWaiting || o.total.Load() > o.most) {
		o.moved.Wait()
	}
	if o.err != nil {
		return 0, o.err
	}
	o.waiting = append(o.waiting, p...)
	o.total.Add(int64(len(p)))
	if !o.draining {
		o.draining = true
		o.running.Go(o.drain)
	}
	return len(p), nil
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
