package bulk

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Listen returns a listener whose connections are Conns that share a pump. l must be a listener for TCP or Unix
// sockets. stall is as for NewConn.
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
	s, ok := c.(Socket)
	if !ok {
		return c, nil
	}
	return NewConn(s, l.pump, l.stall)
}

// Socket is a *net.TCPConn or a *net.UnixConn.
type Socket interface {
	net.Conn
	syscall.Conn
	CloseRead() error
	CloseWrite() error
	SetReadBuffer(bytes int) error
	SetWriteBuffer(bytes int) error
}

// bulkWrite is the minimum length of a Write that takes a turn of the pump. TLS records are shorter, so they take no
// turn. It would add a fifth to the cost of their encryption, and the scheduler can interrupt goroutines that encrypt.
const bulkWrite = 32 << 10

// Conn is a connection whose bulk data is sent in turns: files by sendfile, and bytes from another Conn by splice. At
// most one goroutine writes at a time, and one reads.
type Conn struct {
	Socket
	raw     syscall.RawConn
	pump    *Pump
	stall   time.Duration
	turn    waiter
	out     transfer
	splicer splicer

	served *served      // nil: net/http does not serve it
	limit  atomic.Int64 // current deadline of writes: ns since 1970

	mu     sync.Mutex
	closed bool
	source *Conn // connection whose bytes the relay into this one waits for

	// Since the last new time limit for the peer:
	waited time.Duration // duration of ended writes, without the time between writes
	moved  int64         // bytes that the peer has accepted
	began  time.Time     // start of the current write
}

// NewConn wraps a connection. stall is the time limit of the peer: to accept leastProgress bytes of a write, and to
// send the next bytes of a Stream. After that time the connection fails. 0 means no limit.
func NewConn(c Socket, pump *Pump, stall time.Duration) (*Conn, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		c.Close()
		return nil, err
	}
	conn := &Conn{Socket: c, raw: raw, pump: pump, stall: stall, turn: waiter{ready: make(chan struct{}, 1)}}
	conn.out.init(conn)
	conn.splicer.init(conn)
	return conn, nil
}

// SetStall changes the time limits of both directions. Neither may be in use; no deadline is left set.
func (c *Conn) SetStall(stall time.Duration) error {
	c.stall, c.waited, c.moved = stall, 0, 0
	return c.SetDeadline(time.Time{})
}

// Close closes the connection. Running reads and writes fail.
func (c *Conn) Close() error {
	c.mu.Lock()
	c.closed = true
	if c.source != nil {
		_ = c.source.SetReadDeadline(longAgo)
	}
	c.mu.Unlock()
	if c.served != nil {
		c.served.close()
	}
	return c.Socket.Close()
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// leastProgress is the number of bytes that a peer has to accept, unless fewer remain, to get a new time limit. With a
// limit of a minute that is a rate of 1 KiB/s. With a smaller number a peer could stay for days with a byte a minute.
const leastProgress = 64 << 10

// begin sets the deadline of a write: the time that previous writes have left of the peer's time limit. Setting a
// deadline costs as much as a fifth of a small write. So it is set a little too late, and serves many writes.
func (c *Conn) begin() error {
	if c.stall <= 0 {
		return nil
	}
	c.began = time.Now()
	limit := c.began.Add(c.stall - c.waited)
	if late := time.Duration(c.limit.Load() - limit.UnixNano()); late >= 0 && late <= c.stall/8 {
		return nil
	}
	return c.SetWriteDeadline(limit.Add(c.stall / 16))
}

// progress notes that the peer has accepted n bytes in a write that continues. It sets a new time limit if they are
// enough.
func (c *Conn) progress(n int64) error {
	if c.moved += n; c.moved < leastProgress || c.stall <= 0 {
		return nil
	}
	c.waited, c.moved = 0, 0
	return c.begin()
}

// end records the end of a write in which the peer has accepted another n bytes.
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

// ReadFrom has the kernel copy a *Section or a *Stream if the platform supports that. It copies other readers through a
// pooled buffer.
func (c *Conn) ReadFrom(r io.Reader) (sent int64, err error) {
	if kernelCopies {
		switch r := r.(type) {
		case *Section:
			sent, err = c.out.send(r)
		case *Stream:
			sent, err = c.splicer.send(r)
		default:
			err = errors.ErrUnsupported
		}
		if !unsupported(err) {
			return sent, err
		}
	}
	// The kernel cannot copy between these. It has sent all bytes that it has read.
	buf := c.pump.buffers.Get().(*[copyBuffer]byte)
	defer c.pump.buffers.Put(buf)
	copied, err := io.CopyBuffer(writerOnly{c}, readerOnly{r}, buf[:])
	return sent + copied, err
}

// unsupported reports whether an error means that the kernel cannot copy here.
func unsupported(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, errors.ErrUnsupported)
}

// Write sends p. Large writes take turns with all other bulk copies.
func (c *Conn) Write(p []byte) (int, error) {
	if len(p) < bulkWrite || !kernelCopies {
		if err := c.begin(); err != nil {
			return 0, err
		}
		n, err := c.Socket.Write(p)
		c.end(int64(n))
		return n, err
	}
	return c.out.write(p)
}

// writerOnly hides ReadFrom, so that io.CopyBuffer does not call it again. readerOnly hides WriteTo, which would not
// use the buffer.
type (
	writerOnly struct{ io.Writer }
	readerOnly struct{ io.Reader }
)
