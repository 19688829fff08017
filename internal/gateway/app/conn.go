package app

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
)

// maxHeader is the maximum size of a response header in bytes. net/http limits those of requests.
const maxHeader = 64 << 10

// newTransport returns the connections to one address.
//
// Slots bound the requests at a worker, and a request uses an idle connection before it opens one. If one becomes idle
// meanwhile, the dial ends. So a worker has no more connections than slots, unless this happens at the end of a dial.
// That matters because an idle connection can occupy a thread of a worker. For the same reason idle connections are
// closed soon.
func newTransport(a address, o *Options) *http.Transport {
	t := &http.Transport{
		DisableCompression:     true,
		MaxIdleConnsPerHost:    1 << 16, // bounded by the slots
		IdleConnTimeout:        o.KeepIdle,
		ResponseHeaderTimeout:  o.HeaderTimeout,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	dialer := &net.Dialer{Timeout: o.ConnectTimeout, KeepAlive: -1}
	t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		c, err := dial(ctx, dialer, a)
		if err != nil {
			return nil, &dialError{err}
		}
		return &conn{Conn: httpguard.NewConn(c), stall: o.StallTimeout}, nil
	}
	return t
}

// demand is a request's need of a connection, from GetConn to GotConn of httptrace.ClientTrace. A transport continues
// to dial after the request got a connection that became idle.
type demand struct {
	mu   sync.Mutex
	ctx  context.Context // ends with the demand; nil before the first one
	stop context.CancelFunc
}

type demandKey struct{}

func (d *demand) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stop != nil {
		d.stop()
	}
	d.ctx, d.stop = context.WithCancel(context.Background())
}

func (d *demand) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stop != nil {
		d.stop()
	}
}

// dial opens a connection for the request of ctx, unless its demand ends first.
func dial(ctx context.Context, dialer *net.Dialer, a address) (net.Conn, error) {
	d, ok := ctx.Value(demandKey{}).(*demand)
	if !ok { // a health check has no demand
		return dialer.DialContext(ctx, a.network, a.target)
	}
	d.mu.Lock()
	demanded := d.ctx
	d.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(demanded, cancel)()
	c, err := dialer.DialContext(ctx, a.network, a.target)
	if err == nil && demanded.Err() != nil {
		err = errors.Join(demanded.Err(), c.Close())
	}
	return c, err
}

// dialError is the error of a connection that could not be opened. Nothing of a request was sent then.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

// isExhausted reports whether this process or machine has no more file descriptors. That is not the fault of a worker.
func isExhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout()
}

// conn is a connection whose writes have a time limit.
type conn struct {
	*httpguard.Conn
	stall    time.Duration
	renewed  time.Time   // when the limit was set
	isEnded  atomic.Bool // nothing more can be sent
	upgrades atomic.Bool // the next response may switch protocols
	rest     []byte      // to read before the connection
}

// Read adds "Connection: Upgrade" to a response with status 101. Several workers omit it (RFC 9110, section 7.8), and
// http.Transport requires it.
func (c *conn) Read(p []byte) (int, error) {
	if len(c.rest) > 0 {
		n := copy(p, c.rest)
		c.rest = c.rest[n:]
		return n, nil
	}
	n, err := c.Conn.Read(p)
	if n == 0 || !c.upgrades.CompareAndSwap(true, false) {
		return n, err
	}
	for more := 0; err == nil && n < len(p) && bytes.IndexByte(p[:n], '\n') < 0; n += more {
		more, err = c.Conn.Read(p[n:])
	}
	line, rest, isWhole := bytes.Cut(p[:n], []byte("\n"))
	if !isWhole || !bytes.HasPrefix(line, []byte("HTTP/1.1 101")) {
		return n, err
	}
	c.rest = slices.Concat([]byte("Connection: Upgrade\r\n"), rest)
	return len(line) + 1, nil // a later Read has the error
}

func (c *conn) Write(p []byte) (int, error) {
	if c.isEnded.Load() { // the transport takes another connection for the next request
		return 0, net.ErrClosed
	}
	grace := c.stall / 16 // one limit serves many writes
	if now := time.Now(); now.Sub(c.renewed) >= grace {
		c.renewed = now
		if err := c.SetWriteDeadline(now.Add(c.stall + grace)); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(p)
}

// CloseWrite ends the sending direction.
func (c *conn) CloseWrite() error {
	c.isEnded.Store(true)
	if half, ok := c.Conn.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
