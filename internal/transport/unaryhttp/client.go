// Package unaryhttp sends HTTP/1.1 requests on the goroutine of the caller, for short calls that need a low latency.
//
// The client of net/http has two goroutines for each HTTP/1.1 connection, and both ends of HTTP/2 pass each frame
// between goroutines. Each of these steps may wake another thread, on a CPU that sleeps or is busy. With 30 clones on
// two CPUs, a look-up over HTTP/2 took four times as long at the 99th percentile. Here a call is one write and one read
// on one goroutine.
package unaryhttp

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// Client sends requests to one server. Requests have to be short and repeatable: if the server has closed the
// connection, the request is sent again on another one. Safe for concurrent use.
type Client struct {
	// Dial makes a connection, with TLS if necessary. Callers get its errors unchanged.
	Dial func(ctx context.Context) (net.Conn, error)
	// Limit is the maximum duration of a call, up to the end of the response body. Zero means that of its context.
	Limit time.Duration
	// Silence is the maximum time until the first byte of a response on a connection that was used before. After it
	// the connection counts as lost, perhaps in a firewall: idle connections are closed, and the request is sent again.
	// It has to be longer than responses take. Zero means no limit.
	Silence time.Duration

	mu     sync.Mutex
	closed bool
	conns  map[*conn]struct{} // all connections
	idle   []*conn            // the most recently used one last
	sweep  *time.Timer        // runs while there are idle connections
}

const (
	maxHeader = 64 << 10         // bytes of a response header
	maxIdle   = 256              // idle connections
	idleLimit = 15 * time.Second // maximum idle time
	maxStale  = 3                // closed connections that a request tries before a new one
)

// conn is a connection, which one call uses at a time.
type conn struct {
	net.Conn
	r     *bufio.Reader
	w     *bufio.Writer
	left  int64 // remaining bytes of the limit
	since time.Time
}

var (
	errClosed = errors.New("the client is closed")
	errHeader = errors.New("the response header is too long")
	errSilent = errors.New("the connection is silent")
)

func (c *conn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errHeader
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

// Do is RoundTrip under the name that RPC clients use.
func (c *Client) Do(r *http.Request) (*http.Response, error) { return c.RoundTrip(r) }

// RoundTrip sends a request. The caller closes the response body. If it was read to its end, the connection is reused.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	for tries := 0; ; tries++ {
		cn, reused, err := c.get(r.Context(), tries >= maxStale)
		if err != nil {
			if r.Body != nil {
				r.Body.Close()
			}
			return nil, err
		}
		response, stale, err := c.attempt(cn, r, reused)
		if err == nil {
			return response, nil
		}
		if !reused || !stale || !rewind(r) {
			return nil, err
		}
	}
}

// rewind prepares a request for another attempt, and reports whether that is possible.
func rewind(r *http.Request) bool {
	if r.Body == nil || r.Body == http.NoBody {
		return true
	}
	if r.GetBody == nil {
		return false
	}
	body, err := r.GetBody()
	r.Body = body
	return err == nil
}

// attempt sends the request and reads the response header. stale reports that the connection ended or was silent before
// the first byte of a response.
func (c *Client) attempt(cn *conn, r *http.Request, reused bool) (response *http.Response, stale bool, err error) {
	ctx := r.Context()
	now := time.Now()
	limit, bound := ctx.Deadline()
	if most := now.Add(c.Limit); c.Limit > 0 && (!bound || most.Before(limit)) {
		limit, bound = most, true
	}
	first, doubted := now.Add(c.Silence), reused && c.Silence > 0
	if doubted = doubted && (!bound || first.Before(limit)); !doubted {
		first = limit
	}
	_ = cn.SetDeadline(first) // fails only with the connection; the zero time means no deadline
	stop := context.AfterFunc(ctx, func() { _ = cn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if err != nil {
			stop()
			c.drop(cn)
			err = cause(ctx, err)
		}
	}()
	cn.left = maxHeader
	if err = r.Write(cn.w); err == nil {
		err = cn.w.Flush()
	}
	if err == nil {
		_, err = cn.r.Peek(1)
	}
	if err != nil && doubted && ctx.Err() == nil && errors.Is(err, os.ErrDeadlineExceeded) {
		c.CloseIdle() // they are probably lost, too
		return nil, true, errSilent
	}
	if err != nil {
		return nil, cause(ctx, err) == err && !errors.Is(err, net.ErrClosed), err // closed by Abort
	}
	if doubted {
		_ = cn.SetDeadline(limit)
		if ctx.Err() != nil { // the new deadline may have replaced the interruption
			_ = cn.SetDeadline(time.Unix(1, 0))
		}
	}
	for {
		if response, err = http.ReadResponse(cn.r, r); err != nil {
			return nil, false, err
		}
		if response.StatusCode >= 200 {
			break
		}
		if response.StatusCode == http.StatusSwitchingProtocols {
			return nil, false, errors.New("the server switched to another protocol")
		}
	}
	cn.left = math.MaxInt64
	response.Body = &body{ReadCloser: response.Body, ctx: ctx, client: c, conn: cn, stop: stop, keep: !response.Close &&
		!r.Close}
	return response, false, nil
}

// cause returns the error of the context if it interrupted the call, and otherwise err.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if t, ok := errors.AsType[net.Error](err); ok && t.Timeout() { // the deadline of the context may follow a moment later
		return context.DeadlineExceeded
	}
	return err
}

// body is a response body. Its end returns the connection.
type body struct {
	io.ReadCloser
	ctx    context.Context
	client *Client
	conn   *conn // nil after it was returned
	stop   func() bool
	keep   bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.end(true)
	} else if err != nil {
		b.end(false)
		err = cause(b.ctx, err)
	}
	return n, err
}

func (b *body) Close() error {
	b.end(false)
	return nil
}

func (b *body) end(whole bool) {
	cn := b.conn
	if cn == nil {
		return
	}
	b.conn = nil
	// A cancelled call may still change the deadline of the connection.
	if quiet := b.stop(); quiet && whole && b.keep && cn.r.Buffered() == 0 {
		b.client.put(cn)
	} else {
		b.client.drop(cn)
	}
}

// get returns an idle connection, or a new one if there is none or fresh is set.
func (c *Client) get(ctx context.Context, fresh bool) (cn *conn, reused bool, err error) {
	for !fresh {
		if cn = c.pop(); cn == nil {
			break
		}
		if s, ok := cn.Conn.(syscall.Conn); !ok || bulk.Quiet(s) == nil { // with TLS only a call can tell
			return cn, true, nil
		}
		c.drop(cn)
	}
	socket, err := c.Dial(ctx)
	if err != nil {
		return nil, false, err
	}
	cn = &conn{Conn: socket}
	cn.r, cn.w = bufio.NewReader(cn), bufio.NewWriter(socket)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		socket.Close()
		return nil, false, errClosed
	}
	if c.conns == nil {
		c.conns = map[*conn]struct{}{}
	}
	c.conns[cn] = struct{}{}
	return cn, false, nil
}

func (c *Client) pop() *conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.idle)
	if n == 0 {
		return nil
	}
	cn := c.idle[n-1]
	c.idle[n-1], c.idle = nil, c.idle[:n-1]
	return cn
}

// put returns a connection for later calls.
func (c *Client) put(cn *conn) {
	c.mu.Lock()
	_, known := c.conns[cn]
	keep := known && !c.closed && len(c.idle) < maxIdle
	if keep {
		cn.since = time.Now()
		c.idle = append(c.idle, cn)
		if c.sweep == nil {
			c.sweep = time.AfterFunc(idleLimit, c.expire)
		}
	}
	c.mu.Unlock()
	if !keep {
		c.drop(cn)
	}
}

// expire closes connections after their maximum idle time.
func (c *Client) expire() {
	c.mu.Lock()
	n := 0
	for n < len(c.idle) && time.Since(c.idle[n].since) >= idleLimit {
		n++
	}
	old := c.forget(n)
	if c.sweep = nil; len(c.idle) > 0 && !c.closed {
		c.sweep = time.AfterFunc(time.Until(c.idle[0].since.Add(idleLimit)), c.expire)
	}
	c.mu.Unlock()
	closeAll(old)
}

// forget removes the first n idle connections and returns them. The caller closes them, and holds mu.
func (c *Client) forget(n int) []*conn {
	old := slices.Clone(c.idle[:n])
	for _, cn := range old {
		delete(c.conns, cn)
	}
	c.idle = slices.Delete(c.idle, 0, n)
	return old
}

func closeAll(conns []*conn) {
	for _, cn := range conns {
		cn.Close()
	}
}

// drop closes the connection of a call.
func (c *Client) drop(cn *conn) {
	c.mu.Lock()
	delete(c.conns, cn)
	c.mu.Unlock()
	cn.Close()
}

// CloseIdle closes idle connections. It reports whether there are no others.
func (c *Client) CloseIdle() (empty bool) {
	c.mu.Lock()
	idle := c.forget(len(c.idle))
	empty = len(c.conns) == 0
	c.mu.Unlock()
	closeAll(idle)
	return empty
}

// Abort closes all connections. Their calls fail.
func (c *Client) Abort() {
	c.mu.Lock()
	all := c.forget(len(c.idle))
	for cn := range c.conns {
		all = append(all, cn) // its call removes it
	}
	c.mu.Unlock()
	closeAll(all)
}

// Close aborts all calls. Later calls fail.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	if c.sweep != nil {
		c.sweep.Stop()
	}
	c.mu.Unlock()
	c.Abort()
}
