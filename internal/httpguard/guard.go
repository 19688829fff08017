// Package httpguard stands before net/http and refuses requests that two servers could understand in two ways: those with which one smuggles
// a request past a proxy.
//
// net/http reads many of them in one way of its own, and hides that there was another: Content-Length beside chunks, folded headers, lines
// that end with LF alone, targets with a host. So a guarded connection follows what net/http reads from it, from request to request, and
// judges each head before its last byte is handed on: net/http never sees such a request whole, and no handler sees any of it. What
// is let through has one meaning (RFC 9112), without the leniency that it allows to recipients.
//
// The follower copies nothing and knows of a body how long it is alone; what is written passes it by. A connection that is hijacked is followed no
// further. HTTP/2 is not understood, and refused (docs/decisions/0007-http1-alone.md).
//
// A Read never goes past the end of a request. So a Read that begins in a head comes from net/http itself, which has then written all that it has to
// say of the requests before, and the refusal is written there and then. The one exception is the byte by which net/http finds out during
// an answer that a client went away: it is handed on as it is, and judged by the next Read; where more is held
// already it is kept behind that. A chunk that comes while the handler runs is different: a bad
// one ends the body with an error and the request's context, as if the client had gone, and the handler tells the client (RefusedIn).
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

// Options says what a Guard does.
type Options struct {
	// Refused, unless nil, is told of each head that was refused: the handler never hears of it. Called concurrently.
	Refused  func(client net.Addr, why *Refusal)
	TLSLimit time.Duration // how long a TLS handshake may take; 0: no limit
	Log      *log.Logger   // of failed TLS handshakes, as http.Server.ErrorLog
}

// Guard makes guarded connections. Safe for concurrent use.
type Guard struct {
	Options
	refused map[*Refusal]prometheus.Counter
	all     prometheus.Collector
}

// New makes a Guard.
func New(o Options) *Guard {
	g := &Guard{Options: o, refused: map[*Refusal]prometheus.Counter{}}
	g.all = g.newMetrics()
	return g
}

// Listen guards the connections of a listener: the kernel's and such that have a ReadFrom, which net/http still finds, or TLS over them.
func (g *Guard) Listen(l net.Listener) net.Listener { return &listener{l, g} }

// State is for http.Server.ConnState.
func (g *Guard) State(c net.Conn, s http.ConnState) {
	if s == http.StateHijacked {
		if c, ok := c.(interface{ release() }); ok {
			c.release()
		}
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

// RefusedIn is why the body of a request was refused that a handler has, by its context; nil: it was not.
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
		return &secure{conn{Conn: c, guard: l.guard}, below}, nil
	case io.ReaderFrom:
		return &socket{conn{Conn: c, guard: l.guard}, below}, nil
	}
	return &conn{Conn: c, guard: l.guard}, nil
}

// conn is a guarded connection.
type conn struct {
	net.Conn
	guard    *Guard
	follower follower
	held     []byte                  // what came behind the end of a request, with it
	pending  *Refusal                // of a byte that was handed on
	err      error                   // what Read gives from now on
	released bool                    // nothing is followed any more
	bad      atomic.Pointer[Refusal] // of a body
	lingered atomic.Bool
}

func (c *conn) body() *atomic.Pointer[Refusal] { return &c.bad }

// socket is one whose bulk bytes the kernel moves.
type socket struct {
	conn
	io.ReaderFrom
}

// NetConn is the connection below.
func (c *conn) NetConn() net.Conn { return c.Conn }

// CloseWrite ends what is sent.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// release ends the following. Nothing is read meanwhile.
func (c *conn) release() { c.released, c.pending = true, nil }

// Read reads for net/http: no more than to the end of a request.
func (c *conn) Read(p []byte) (int, error) {
	switch {
	case c.err != nil:
		return 0, c.err
	case c.pending != nil:
		return 0, c.refuse(c.pending)
	}
	n, err := 0, error(nil)
	if len(p) == 1 && len(c.held) > 0 && !c.released && c.follower.state == between { // net/http looks after the client, who may leave behind what is held
		if n, err = c.Conn.Read(p); n > 0 {
			c.held = append(c.held, p[0])
		}
		return 0, err
	}
	if len(c.held) > 0 {
		n = copy(p, c.held)
	} else {
		n, err = c.Conn.Read(p)
	}
	took := n
	if n > 0 && !c.released {
		watching, head := len(p) == 1 && c.follower.state == between, c.follower.inHead()
		var why *Refusal
		switch took, why = c.follower.follow(p[:n]); {
		case why == nil && took < n:
			err = nil // it comes again, behind what is held
		case why == nil:
		case watching:
			took, c.pending = n, why
		case head:
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

// hold keeps what stands behind the first took bytes of p, which is what is held or has just come.
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

// How long a connection stays open for a client that was refused and has not read that yet, and how many bytes of it are read meanwhile: if there
// were some when it is closed, the client could lose the answer.
const (
	lingerTime  = 2 * time.Second
	lingerBytes = 256 << 10
)

// refuse answers a head, and gives the error with which net/http lets the connection go.
func (c *conn) refuse(why *Refusal) error {
	c.err = &net.OpError{Op: "read", Net: "tcp", Addr: c.RemoteAddr(), Err: why}
	c.held = nil
	c.guard.count(why)
	if c.guard.Refused != nil {
		c.guard.Refused(c.RemoteAddr(), why)
	}
	body := why.Error() + "\n"
	answer := fmt.Sprintf("HTTP/1.1 %d %s\r\nCache-Control: no-store\r\nConnection: close\r\nContent-Length: %d\r\nContent-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n\r\n",
		why.Status, http.StatusText(why.Status), len(body))
	if c.follower.method != isHEAD {
		answer += body
	}
	if _, err := io.WriteString(c.Conn, answer); err == nil {
		c.linger()
	}
	return c.err
}

// Close closes the connection; where a body was refused, after a while.
func (c *conn) Close() error {
	if c.bad.Load() != nil && !c.lingered.Swap(true) {
		c.linger()
	}
	return c.Conn.Close()
}

// linger ends what is sent, and gives the client time to read it.
func (c *conn) linger() {
	err := c.CloseWrite()
	if err == nil {
		err = c.SetReadDeadline(time.Now().Add(lingerTime))
	}
	if err == nil {
		_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
	}
}
