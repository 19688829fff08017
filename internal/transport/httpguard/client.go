package httpguard

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"syscall"

	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// Transport is an http.Transport for HTTP/1.1. Unexpected bytes on a connection never become the answer to a later
// request.
//
// A faulty or hostile server can send more than one answer to a request, for example the body of an answer that has
// none. http.Transport offers a connection to other requests before it looks for such bytes, and then takes them for
// the answer to the next request, perhaps that of another user. Here a request waits until the transport has looked.
//
// So it is known whether a connection was closed before a request was sent. The request is sent again then.
type Transport struct{ *http.Transport }

// Client returns a client with a guarded transport. It does not follow redirects. All clients of the server are made by
// it, and speak HTTP/1.1 unless the transport speaks HTTP/2 only, which needs no guard.
func Client(t *http.Transport) *http.Client {
	c := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if c.Transport = t; t.Protocols == nil || t.Protocols.HTTP1() {
		c.Transport = NewTransport(t)
	}
	return c
}

// Do sends a request and reads the body of the response. The error is that of Do of c, or of the body. After the
// latter, there is a response. A body of more than limit bytes is an error, or cut off if the response is one.
func Do(c *http.Client, r *http.Request, limit int) (*http.Response, []byte, error) {
	response, err := c.Do(r)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, int64(limit)+1))
	if len(body) <= limit {
		return response, body, err
	}
	if response.StatusCode/100 == 2 {
		err = fmt.Errorf("response of more than %d bytes", limit)
	}
	return response, body[:limit], err
}

// NewTransport returns a Transport that uses t. It replaces DialContext.
func NewTransport(t *http.Transport) *Transport {
	dial := t.DialContext
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return NewConn(c), nil
	}
	return &Transport{t}
}

// RoundTrip implements http.RoundTripper. If nothing was sent because a connection was closed while it was idle, the
// request is sent on another one. http.Transport does not do that for each request: see Settle.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		isOpen := true
		trace := httptrace.ClientTrace{
			GetConn: func(string) { isOpen = true },
			GotConn: func(info httptrace.GotConnInfo) { isOpen = !info.Reused || settle(info.Conn) },
		}
		response, err := t.Transport.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), &trace)))
		if err == nil || isOpen {
			return response, err
		}
		if r.Body != nil && r.Body != http.NoBody {
			if r.GetBody == nil {
				return nil, err
			}
			body, failure := r.GetBody()
			if failure != nil {
				return nil, err
			}
			r = r.WithContext(r.Context())
			r.Body = body
		}
	}
}

// settle is Settle for a connection that may be below TLS.
func settle(c net.Conn) bool {
	for {
		secure, ok := c.(*tls.Conn)
		if !ok {
			break
		}
		c = secure.NetConn()
	}
	guarded, ok := c.(*Conn)
	return !ok || guarded.Settle()
}

// Conn is a connection of an http.Transport.
type Conn struct {
	net.Conn
	mu        sync.Mutex
	changed   sync.Cond
	isReading bool
	isClosed  bool
}

// NewConn returns a Conn, which DialContext returns to the transport. TLS is above it.
func NewConn(c net.Conn) *Conn {
	guarded := &Conn{Conn: c}
	guarded.changed.L = &guarded.mu
	return guarded
}

// Settle is for GotConn of httptrace.ClientTrace if the connection was used before. It reports whether the connection
// has no unexpected bytes and is not closed. Otherwise the transport sends nothing on it. It usually takes another
// connection. But if it notices that this one is closed before it has counted the request, it fails a request that is
// not idempotent.
//
// GotConn runs before the transport expects an answer. If the transport has more bytes than the last answer, it closes
// the connection then. Otherwise it reads. So Settle waits until one of both has happened, and not for the network.
func (c *Conn) Settle() bool {
	c.mu.Lock()
	for !c.isReading && !c.isClosed {
		c.changed.Wait()
	}
	isClosed := c.isClosed
	c.mu.Unlock()
	if isClosed {
		return false
	}
	if socket, ok := c.Conn.(syscall.Conn); ok && bulk.Quiet(socket) != nil { // not read yet
		_ = c.Close() // the transport is about to notice it
		return false
	}
	return true
}

func (c *Conn) Read(p []byte) (int, error) {
	c.setReading(true)
	defer c.setReading(false)
	return c.Conn.Read(p)
}

func (c *Conn) setReading(to bool) {
	c.mu.Lock()
	c.isReading = to
	c.mu.Unlock()
	if to {
		c.changed.Broadcast()
	}
}

// Close closes the connection.
func (c *Conn) Close() error {
	c.mu.Lock()
	c.isClosed = true
	c.mu.Unlock()
	c.changed.Broadcast()
	return c.Conn.Close()
}
