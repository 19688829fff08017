package bulk

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Serve is for http.Server.ConnContext. It saves net/http two costs of each request that few requests need.
//
//   - net/http reads one byte in another goroutine to notice that the client disconnects during a response. Here that
//     read ends at once, without a byte. If the response takes long, the connection is checked, and the returned
//     context ends when the client has disconnected. The next read ends the check.
//   - net/http sets five or more deadlines for reads, which rarely pass. Here an earlier deadline than the current one
//     stays set, and is checked when it passes.
//
// A connection below TLS is unchanged: net/http reads from the TLS connection.
func Serve(ctx context.Context, c net.Conn) context.Context {
	for {
		switch below := c.(type) {
		case *Conn:
			ctx, gone := context.WithCancel(ctx)
			below.served = &served{conn: below, gone: gone}
			return ctx
		case *tls.Conn:
			return ctx
		case interface{ NetConn() net.Conn }:
			c = below.NetConn()
		default:
			return ctx
		}
	}
}

// served is the additional state of a connection that net/http serves. At most one goroutine reads.
type served struct {
	conn *Conn
	gone context.CancelFunc

	mu      sync.Mutex
	closed  bool
	reading bool
	wanted  time.Time // the deadline of reads
	set     time.Time // the deadline of the socket; it can differ from wanted while there is no reader

	came      bool          // bytes have arrived since the last skipped read of one byte
	answering bool          // a request is being answered, without a reader
	answers   uint64        // number of answers so far
	found     uint64        // value of answers at the last call of look
	timer     *time.Timer   // calls look; nil: not needed so far
	due       bool          // the timer is set
	looks     chan struct{} // closed when the running check has ended; nil: no check runs
}

// lasting is the interval of look. A client is checked if its answer takes longer than one to two intervals.
const lasting = 50 * time.Millisecond

// Read reads what the peer sent.
func (c *Conn) Read(p []byte) (int, error) {
	if c.served == nil {
		return c.Socket.Read(p)
	}
	return c.served.read(p)
}

// SetReadDeadline sets the time limit of reads.
func (c *Conn) SetReadDeadline(t time.Time) error {
	if c.served == nil {
		return c.Socket.SetReadDeadline(t)
	}
	return c.served.limit(t)
}

// SetWriteDeadline sets the time limit of writes, unless they set another one.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	if c.served != nil && t.IsZero() && c.stall > 0 {
		return nil // net/http removes the deadline after each answer; the next write sets one anyway
	}
	c.limit.Store(t.UnixNano())
	return c.Socket.SetWriteDeadline(t)
}

// SetDeadline sets the time limits of both directions.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (s *served) read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(p) == 1 && s.came && !s.closed {
		s.came = false
		s.answer()
		return 0, nil
	}
	s.endLook()
	s.reading = true
	defer func() { s.reading = false }()
	for {
		if err := s.apply(); err != nil {
			return 0, err
		}
		s.mu.Unlock()
		n, err := s.conn.Socket.Read(p)
		s.mu.Lock()
		s.came = s.came || n > 0
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || !s.wanted.IsZero() && !time.Now().Before(s.wanted) {
			return n, err
		}
		s.set = longAgo // an earlier deadline than wanted has passed
	}
}

// apply sets the socket's deadline to wanted, unless an earlier one is set that has not passed. The caller holds the
// lock.
func (s *served) apply() error {
	if !s.set.IsZero() && s.set.After(longAgo) && (s.wanted.IsZero() || !s.set.After(s.wanted)) ||
		s.set.Equal(s.wanted) {
		return nil
	}
	s.set = s.wanted
	return s.conn.Socket.SetReadDeadline(s.wanted)
}

func (s *served) limit(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	if s.wanted = t; !s.reading {
		return nil
	}
	return s.apply()
}

// answer records that a request is being answered, without a reader. The caller holds the lock.
func (s *served) answer() {
	s.answering = true
	s.answers++
	switch {
	case s.due:
	case s.timer == nil:
		s.timer = time.AfterFunc(lasting, s.look)
	default:
		s.timer.Reset(lasting)
	}
	s.due = true
}

// look starts a check of the client if two calls in a row find the same answer in progress.
func (s *served) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.due = s.answering && s.answers != s.found; s.due {
		s.found = s.answers
		s.timer.Reset(lasting)
		return
	}
	if !s.answering || s.looks != nil {
		return
	}
	if s.set = (time.Time{}); s.conn.Socket.SetReadDeadline(s.set) != nil {
		return
	}
	over := make(chan struct{})
	s.looks = over
	go func() {
		defer close(over)
		if s.peek() {
			s.gone()
		}
	}()
}

// peek waits until the client closes its side, even after another request. Where that cannot be determined, it waits
// until the client sends something. It reads nothing.
func (s *served) peek() (gone bool) {
	var b [1]byte
	err := s.conn.raw.Read(func(fd uintptr) bool {
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		if n > 0 {
			ended, known := hasEnded(fd)
			gone = ended
			return ended || !known
		}
		gone = true
		return err == nil || err != syscall.EAGAIN && err != syscall.EINTR
	})
	return err == nil && gone
}

// endLook ends the check of the client. The caller holds the lock. endLook releases it while it waits.
func (s *served) endLook() {
	s.answering = false
	if s.looks == nil {
		return
	}
	s.set = longAgo
	_ = s.conn.Socket.SetReadDeadline(longAgo)
	looks := s.looks
	s.mu.Unlock()
	<-looks
	s.mu.Lock()
	s.looks = nil
}

// close records that the connection is closed.
func (s *served) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.answering = true, false
	if s.timer != nil {
		s.timer.Stop()
	}
}
