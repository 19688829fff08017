// Package httpguard refuses HTTP/1 requests that two servers could understand in two ways. Such requests smuggle others
// past a proxy.
//
// net/http accepts many of them: Content-Length together with chunks, folded fields, lines that end with LF alone,
// targets with a host. So a guarded connection follows the bytes that net/http reads, and checks each line before it
// passes on the line's last byte. net/http never sees a refused request in full, and no handler sees any of it.
// Accepted requests have one meaning (RFC 9112), without the leniency that the RFC allows.
//
// The guard copies only incomplete lines, and ignores responses. It stops when a connection is hijacked. HTTP/2 is
// refused (docs/decisions/0007-http1-alone.md).
//
// A Read never returns bytes of two requests. So a Read that begins in a head comes from net/http itself, which has
// then written all previous responses, and the refusal is written at once. There are two exceptions. During a response,
// net/http reads one byte to notice that a client disconnects: it is passed on, and a refusal waits for the next Read.
// And chunks come while a handler runs: a bad one ends the body with an error and the context of the request, and the
// handler answers (RefusedIn).
package httpguard

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Options configure a Guard.
type Options struct {
	// Refused, if not nil, is called for each refused head, which no handler gets to know. It is called concurrently.
	Refused  func(client net.Addr, why *Refusal)
	TLSLimit time.Duration // timeout of a TLS handshake; 0: none
	Log      *log.Logger   // for failed TLS handshakes, like http.Server.ErrorLog; nil: none
}

// Guard makes guarded connections. Safe for concurrent use.
type Guard struct {
	Options
	refused *prometheus.CounterVec
}

// New returns a Guard.
func New(o Options) *Guard { return &Guard{Options: o, refused: newCounter()} }

// Listen guards the connections of a listener.
func (g *Guard) Listen(l net.Listener) net.Listener { return &listener{l, g} }

// State is for http.Server.ConnState.
func (g *Guard) State(c net.Conn, s http.ConnState) {
	if c, ok := c.(interface{ release() }); ok && s == http.StateHijacked {
		c.release()
	}
}

// Context is for http.Server.ConnContext.
func (g *Guard) Context(ctx context.Context, c net.Conn) context.Context {
	if c, ok := c.(interface {
		body() *atomic.Pointer[Refusal]
	}); ok {
		return context.WithValue(ctx, bodyKey{}, c.body())
	}
	return ctx
}

type bodyKey struct{}

// RefusedIn returns why the body of a request was refused, from the context of the request. Nil means that it was not.
func RefusedIn(ctx context.Context) *Refusal {
	if bad, ok := ctx.Value(bodyKey{}).(*atomic.Pointer[Refusal]); ok {
		return bad.Load()
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
	switch below := c.(type) {
	case *tls.Conn:
		return &tlsConn{conn{Conn: c, guard: l.guard}, below}, nil
	case io.ReaderFrom:
		return &plainConn{conn{Conn: c, guard: l.guard}, below}, nil
	}
	return &conn{Conn: c, guard: l.guard}, nil
}

// conn is a guarded connection.
type conn struct {
	net.Conn
	guard      *Guard
	follower   follower
	held       []byte                  // came together with the end of a request
	pending    *Refusal                // of a byte that was passed on
	err        error                   // result of all further Reads
	isReleased bool                    // nothing is followed any more
	bad        atomic.Pointer[Refusal] // of a body
	lingered   atomic.Bool
}

func (c *conn) body() *atomic.Pointer[Refusal] { return &c.bad }

// plainConn is a connection whose io.ReaderFrom net/http can use.
type plainConn struct {
	conn
	io.ReaderFrom
}

// NetConn returns the connection below.
func (c *conn) NetConn() net.Conn { return c.Conn }

// CloseWrite ends what is sent.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

func (c *conn) release() { c.isReleased, c.pending = true, nil }

// Read reads for net/http, at most to the end of a request.
func (c *conn) Read(p []byte) (n int, err error) {
	// net/http looks whether the client is still there
	isWatching := len(p) == 1 && !c.isReleased && c.follower.isBetween()
	switch {
	case c.err != nil:
		return 0, c.err
	case c.pending != nil:
		return 0, c.refuse(c.pending)
	case isWatching && len(c.held) > 0: // the byte comes after those that are held
		if n, err = c.Conn.Read(p); n > 0 {
			c.held = append(c.held, p[0])
		}
		return 0, err
	case len(c.held) > 0:
		n = copy(p, c.held)
	default:
		n, err = c.Conn.Read(p)
	}
	took := n
	if n > 0 && !c.isReleased {
		inHead := c.follower.inHead()
		var why *Refusal
		switch took, why = c.follower.follow(p[:n]); {
		case why == nil && took < n:
			err = nil // it comes again after the held bytes
		case why == nil:
		case isWatching:
			took, c.pending = n, why
		case inHead:
			return 0, c.refuse(why)
		default:
			c.guard.count(why)
			c.bad.Store(why)
			c.err, err = why, why
		}
	}
	c.hold(p[:n], took)
	return took, err
}

// hold keeps the bytes after the first took bytes of p. These bytes are the first held ones, or new.
func (c *conn) hold(p []byte, took int) {
	switch {
	case len(c.held) > took:
		c.held = c.held[took:]
	case c.held != nil:
		c.held = nil
	case took < len(p):
		c.held = append(c.held, p[took:]...)
	}
}

// refuse answers a head and returns the error that makes net/http drop the connection.
func (c *conn) refuse(why *Refusal) error {
	c.err = &net.OpError{Op: "read", Net: "tcp", Addr: c.RemoteAddr(), Err: why}
	c.held = nil
	c.guard.count(why)
	if c.guard.Refused != nil {
		c.guard.Refused(c.RemoteAddr(), why)
	}
	body := why.Error() + "\n"
	response := fmt.Sprintf("HTTP/1.1 %d %s\r\nCache-Control: no-store\r\nConnection: close\r\nContent-Length: %d\r\n"+
		"Content-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n\r\n", why.Status,
		http.StatusText(why.Status), len(body))
	if !c.follower.isHEAD {
		response += body
	}
	if _, err := io.WriteString(c.Conn, response); err == nil {
		c.linger()
	}
	return c.err
}

// Close closes the connection; after a refused body, with a delay.
func (c *conn) Close() error {
	if c.bad.Load() != nil && !c.lingered.Swap(true) {
		c.linger()
	}
	return c.Conn.Close()
}

// A refused client has lingerTime to read the response. Meanwhile up to lingerBytes of it are read: a connection that
// is closed with unread bytes is reset, and the client could lose the response.
const (
	lingerTime  = 2 * time.Second
	lingerBytes = 256 << 10
)

func (c *conn) linger() {
	err := c.CloseWrite()
	if err == nil {
		err = c.SetReadDeadline(time.Now().Add(lingerTime))
	}
	if err == nil {
		_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
	}
}
