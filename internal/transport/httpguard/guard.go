// Package httpguard keeps the messages of an HTTP/1.1 connection apart. A Guard refuses requests that two servers could
// understand in two ways. Such requests smuggle others past a proxy. A client with a Transport does not take what a
// server sends too much for the answer to another request.
//
// net/http accepts many of them: Content-Length together with chunks, folded fields, lines that end with LF alone,
// targets with a host. So a guarded connection follows the bytes that net/http reads. It checks each line outside of
// bodies before it passes on the line feed. net/http never sees a refused request in full, and no handler sees any of
// it. Accepted requests have one meaning (RFC 9112), without the leniency that the RFC allows.
//
// The bytes before a fault are passed on. A Read after them comes from net/http, which has then written all previous
// responses, and the refusal is written. net/http cannot use the incomplete head. If the fault is in a chunked body,
// the body ends with an error, and the handler answers (RefusedIn). The guard ignores responses, and stops when a
// connection is hijacked. HTTP/2 is refused (docs/decisions/0007-http1-alone.md).
package httpguard

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// Options configure a Guard.
type Options struct {
	// Refused, if not nil, is called for each refused head, which no handler gets to know. It is called concurrently.
	Refused func(client net.Addr, why *Refusal)
}

// Guard makes guarded connections. Safe for concurrent use.
type Guard struct{ Options }

// New returns a Guard.
func New(o Options) *Guard { return &Guard{o} }

// Listen guards the connections of a listener.
func (g *Guard) Listen(l net.Listener) net.Listener { return &listener{l, g} }

// State is for http.Server.ConnState.
func (g *Guard) State(c net.Conn, s http.ConnState) {
	if c, ok := c.(interface{ guarded() *conn }); ok && s == http.StateHijacked {
		c.guarded().isReleased = true
	}
}

// Context is for http.Server.ConnContext.
func (g *Guard) Context(ctx context.Context, c net.Conn) context.Context {
	if c, ok := c.(interface{ guarded() *conn }); ok {
		return context.WithValue(ctx, connKey{}, c.guarded())
	}
	return ctx
}

type connKey struct{}

// RefusedIn returns why the body of a request was refused, from the context of the request. Nil means that it was not.
func RefusedIn(ctx context.Context) *Refusal {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		return c.body.Load()
	}
	return nil
}

type listener struct {
	net.Listener
	guard *Guard
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	guarded := &conn{Conn: c, guard: l.guard}
	switch below := c.(type) {
	case *tls.Conn:
		return &tlsConn{guarded, below}, nil
	case io.ReaderFrom:
		return &plainConn{guarded, below}, nil
	}
	return guarded, nil
}

// conn is a guarded connection.
type conn struct {
	net.Conn
	guard      *Guard
	follower   follower
	isReleased bool                    // nothing is checked any more
	pending    *Refusal                // of a later request, for the next Read
	held       []byte                  // the bytes from that fault on
	body       atomic.Pointer[Refusal] // of a body
	isAnswered atomic.Bool             // a head was refused
	isRefused  atomic.Bool             // the client has to read a refusal before the connection is closed
	err        error                   // result of all further Reads
}

// plainConn is a connection whose io.ReaderFrom net/http can use.
type plainConn struct {
	*conn
	io.ReaderFrom
}

func (c *conn) guarded() *conn { return c }

// NetConn returns the connection below.
func (c *conn) NetConn() net.Conn { return c.Conn }

// CloseWrite ends the sending direction.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Read reads for net/http.
func (c *conn) Read(p []byte) (int, error) {
	switch {
	case c.isReleased && len(c.held) > 0:
		n := copy(p, c.held)
		c.held = c.held[n:]
		return n, nil
	case c.isReleased:
		return c.Conn.Read(p)
	case c.err != nil:
		return 0, c.err
	case c.pending != nil && len(p) == 1: // net/http watches the connection during a response
		n, err := c.Conn.Read(p)
		c.held = append(c.held, p[:n]...)
		return 0, err
	case c.pending != nil:
		return 0, c.refuse()
	}
	isWatch := len(p) == 1 && c.follower.isBetween()
	n, err := c.Conn.Read(p)
	if record, ok := errors.AsType[tls.RecordHeaderError](err); ok && record.Conn != nil {
		io.WriteString(record.Conn, "HTTP/1.0 400 Bad Request\r\n\r\nthis port needs HTTPS: use https:// in the address\n")
		return 0, io.EOF
	}
	ended := c.follower.ended
	correct, why := c.follower.follow(p[:n])
	if why == nil {
		return n, err
	}
	c.pending = why
	switch {
	case isWatch:
		correct = n
	case !c.follower.inHead() && c.follower.ended == ended:
		return correct, c.refuse()
	case !c.follower.inHead(): // of a later request: net/http must not see the bad line before it asks for more
		correct -= len(c.follower.line)
	}
	c.held = append(c.held, p[correct:n]...)
	if correct > 0 {
		return correct, nil
	}
	return 0, c.refuse()
}

// Write writes for net/http. After a refused head it does not, because net/http answers a line that ends with an error.
func (c *conn) Write(p []byte) (int, error) {
	if c.isAnswered.Load() {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

// note counts a refusal. All further Reads return err.
func (c *conn) note(why *Refusal, err error) error {
	c.err = err
	c.isRefused.Store(true)
	return err
}

// refuse answers the pending head and returns the error that makes net/http drop the connection. The handler answers if
// the fault is in a body.
func (c *conn) refuse() error {
	why := c.pending
	if !c.follower.inHead() {
		c.body.Store(why)
		return c.note(why, why)
	}
	if c.guard.Refused != nil {
		c.guard.Refused(c.RemoteAddr(), why)
	}
	fmt.Fprintf(c.Conn, "HTTP/1.1 %d %s\r\nCache-Control: no-store\r\nConnection: close\r\nContent-Length: %d\r\n"+
		"Content-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n\r\n%s\n", why.Status,
		http.StatusText(why.Status), len(why.text)+1, why.text)
	c.isAnswered.Store(true)
	return c.note(why, &net.OpError{Op: "read", Net: "tcp", Addr: c.RemoteAddr(), Err: why})
}

// A refused client has lingerTime to read the response. Meanwhile up to lingerBytes of it are read: a connection that
// is closed with unread bytes is reset, and the client could lose the response.
const (
	lingerTime  = 2 * time.Second
	lingerBytes = 256 << 10
)

// Close closes the connection; after a refusal, with a delay.
func (c *conn) Close() error {
	isRefused := c.isRefused.Swap(false)
	if isRefused && c.CloseWrite() == nil && c.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
	}
	return c.Conn.Close()
}

// tlsConn is a guarded connection with TLS. The handshake is made by the first Read, within the time for a head.
type tlsConn struct {
	*conn
	tls *tls.Conn
}

// ConnectionState is for http.Request.TLS. The handshake need not be complete.
func (c *tlsConn) ConnectionState() tls.ConnectionState { return c.tls.ConnectionState() }
