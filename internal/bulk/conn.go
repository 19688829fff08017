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

// Listen makes the connections of a listener for TCP or Unix sockets Conns that share a pump. A connection whose peer
// keeps us waiting for stall while it takes less than leastProgress is cut off; 0 means never.
func Listen(l net.Listener, pump *Pump, stall time.Duration) net.Listener {
	return &listener{Listener: Unpaced(l), pump: pump, stall: stall}
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

// Socket is a connection of the kernel's own: a *net.TCPConn or a *net.UnixConn.
type Socket interface {
	net.Conn
	syscall.Conn
	CloseRead() error
	CloseWrite() error
	SetReadBuffer(bytes int) error
	SetWriteBuffer(bytes int) error
}

// bulkWrite is from which length on a Write takes a turn of the pump. A TLS record is shorter: a turn for each of them
// cost a fifth of what it costs to encrypt it, and goroutines that encrypt can be interrupted anyway.
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
	limit  atomic.Int64 // of writes, that is set: ns since 1970

	mu     sync.Mutex
	closed bool
	source *Conn // what the relay into this connection waits for

	// Since the last new time limit for the peer:
	waited time.Duration // in writes that are done; what passes between them is not the peer's time
	moved  int64         // bytes taken
	began  time.Time     // of the write that runs
}

// NewConn wraps a connection. A peer that keeps us waiting for stall, while it takes less than leastProgress or sends
// nothing of what a Stream is to get, is cut off; 0 means never.
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

// Close closes the connection, and ends what reads from it or writes to it.
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

// leastProgress is how many bytes, or all that are left, a peer has to accept for a new time limit. With a limit of a
// minute that is a rate of 1 KiB/s. Less would let a peer hold its place for days with a byte a minute.
const leastProgress = 64 << 10

// begin sets the time limit of a write: what the writes before it have left. To set one costs as much as a fifth of a
// small write, so one that is a little late serves many.
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

// ReadFrom sends a *Section or a *Stream by the kernel where the platform can, and anything else through one pooled
// buffer.
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
	// The kernel cannot do it with these, and has taken nothing that it has not sent.
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

// writerOnly hides ReadFrom, so that io.CopyBuffer does not come back to it; readerOnly hides WriteTo, which would not
// use the buffer.
type (
	writerOnly struct{ io.Writer }
	readerOnly struct{ io.Reader }
)
