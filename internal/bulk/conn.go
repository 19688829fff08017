package bulk

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"
)

// Listen makes the connections of a TCP listener Conns that share a pump. A connection whose peer keeps us waiting for stall
// while it takes less than leastProgress is cut off; 0 means never.
func Listen(l net.Listener, pump *Pump, stall time.Duration) net.Listener {
	return &listener{Listener: l, pump: pump, stall: stall}
}

type listener struct {
	net.Listener
	pump  *Pump
	stall time.Duration
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c, nil
	}
	return NewConn(tcp, l.pump, l.stall)
}

// bulkWrite is from which length on a Write takes a turn of the pump. A TLS record is shorter: a turn for each of them cost a fifth of
// what it costs to encrypt it, and goroutines that encrypt can be interrupted anyway.
const bulkWrite = 32 << 10

// Conn is a TCP connection whose bulk bytes go out in turns, files by sendfile. At most one goroutine writes at a time.
type Conn struct {
	*net.TCPConn
	raw   syscall.RawConn
	pump  *Pump
	stall time.Duration
	turn  waiter
	out   transfer

	// Since the peer's time limit was last set anew:
	waited time.Duration // in writes that are done; what passes between them is not the peer's time
	moved  int64         // bytes taken
	began  time.Time     // of the write that runs
}

// NewConn wraps a TCP connection.
func NewConn(c *net.TCPConn, pump *Pump, stall time.Duration) (*Conn, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		c.Close()
		return nil, err
	}
	conn := &Conn{TCPConn: c, raw: raw, pump: pump, stall: stall, turn: waiter{ready: make(chan struct{}, 1)}}
	conn.out.init(conn)
	return conn, nil
}

// leastProgress is how many bytes a peer has to take, or all that is left, to get a new time limit: with a limit of a minute that is
// a rate of 1 KiB/s. Less would let a peer hold its place for days with a byte a minute.
const leastProgress = 64 << 10

// begin sets the time limit of a write: what the writes before it have left.
func (c *Conn) begin() error {
	if c.stall <= 0 {
		return nil
	}
	c.began = time.Now()
	return c.TCPConn.SetWriteDeadline(c.began.Add(c.stall - c.waited))
}

// progress notes that the peer took n bytes, in a write that goes on, and sets the time limit anew if they are enough.
func (c *Conn) progress(n int64) error {
	if c.moved += n; c.moved < leastProgress || c.stall <= 0 {
		return nil
	}
	c.waited, c.moved = 0, 0
	return c.begin()
}

// end notes that a write is over in which the peer took another n bytes.
func (c *Conn) end(n int64) {
	if c.stall <= 0 {
		return
	}
	if c.moved += n; c.moved >= leastProgress {
		c.waited, c.moved = 0, 0
		return
	}
	c.waited += time.Since(c.began)
}

// ReadFrom sends a *Section by the kernel where the platform can, and anything else through one pooled buffer.
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	s, ok := r.(*Section)
	if !ok || !kernelCopies {
		return io.Copy(writerOnly{c}, r)
	}
	sent, err := c.out.send(s)
	if !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOSYS) {
		return sent, err
	}
	// The file's file system cannot do it.
	copied, err := io.Copy(writerOnly{c}, r)
	return sent + copied, err
}

// Write sends p. Large writes take turns with all other bulk copies.
func (c *Conn) Write(p []byte) (int, error) {
	if len(p) < bulkWrite || !kernelCopies {
		if err := c.begin(); err != nil {
			return 0, err
		}
		n, err := c.TCPConn.Write(p)
		c.end(int64(n))
		return n, err
	}
	return c.out.write(p)
}

// writerOnly hides ReadFrom, so that io.Copy does not come back to it.
type writerOnly struct{ io.Writer }
