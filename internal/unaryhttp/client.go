// Package unaryhttp makes HTTP/1.1 requests on the caller's own goroutine, for short calls whose latency counts.
//
// net/http's client has two goroutines for each HTTP/1.1 connection, and both ends of HTTP/2 hand every frame from one goroutine to the
// next. Each hand-over may wake another thread, on a CPU that sleeps or has other work: with 30 clones on two CPUs a look-up by HTTP/2 took
// four times as long as this one at the 99th percentile. Here a call is one write and one read, and its goroutine waits for nothing else.
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

	"github.com/packhorse-git/packhorse/internal/bulk"
)

// Client sends requests to one server. Requests have to be short, and such that can be sent twice: one that found its connection closed by the
// server is sent again on another. Safe for concurrent use.
type Client struct {
	// Dial makes a connection, by TLS if that is wanted. Its errors are handed to the caller as they are.
	Dial func(ctx context.Context) (net.Conn, error)
	// Limit bounds a call, from the request to the end of the answer's body; 0: its context alone does.
	Limit time.Duration
	// Silence bounds how long nothing of an answer may come by a connection that was used before; then it is taken for one that something between here and the server
	// has forgotten, the idle ones are closed, and the request is sent again. 0: no bound but the call's. It has to be longer than answers take to begin.
	Silence time.Duration

	mu     sync.Mutex
	closed bool
	conns  map[*conn]struct{} // all of them
	idle   []*conn            // the last used one last
	sweep  *time.Timer        // runs while there are idle ones
}

const (
	maxHeader = 64 << 10         // bytes of an answer's header
	maxIdle   = 256              // connections that are kept
	idleLimit = 15 * time.Second // for how long
	maxStale  = 3                // connections that turned out to be closed, before a new one is made
)

// conn is a connection. A call has it for itself.
type conn struct {
	net.Conn
	r     *bufio.Reader
	w     *bufio.Writer
	left  int64 // bytes that may still be read
	since time.Time
}

var (
	errClosed = errors.New("the client was closed")
	errHeader = errors.New("the header of the answer is too long")
	errSilent = errors.New("nothing comes by this connection any more")
)

func (c *conn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errHeader
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

// Do is RoundTrip under the name that RPC clients know.
func (c *Client) Do(r *http.Request) (*http.Response, error) { return c.RoundTrip(r) }

// RoundTrip sends a request. The answer's body has to be closed; the connection is used again if it was read to its end.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	for tries := 0; ; tries++ {
		cn, reused, err := c.get(r.Context(), tries >= maxStale)
		if err != nil {
			if r.Body != nil {
				r.Body.Close()
			}
			return nil, err
		}
		response, stale, err := c.exchange(cn, r, reused)
		if err == nil {
			return response, nil
		}
		if !reused || !stale || !rewind(r) {
			return nil, err
		}
	}
}

// rewind makes the request ready to be sent again.
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

// exchange sends the request and reads the answer's header. stale says that the connection ended, or was silent, before anything of an answer came.
func (c *Client) exchange(cn *conn, r *http.Request, reused bool) (response *http.Response, stale bool, err error) {
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
	_ = cn.SetDeadline(first) // fails with the connection; the zero time is none
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
		c.CloseIdle() // they are likely to be as that one is
		return nil, true, errSilent
	}
	if err != nil {
		return nil, cause(ctx, err) == err && !errors.Is(err, net.ErrClosed), err // which would be Abort
	}
	if doubted {
		_ = cn.SetDeadline(limit)
		if ctx.Err() != nil { // whose interruption that may have undone
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
			return nil, false, errors.New("the server switched to a protocol that nobody asked for")
		}
	}
	cn.left = math.MaxInt64
	response.Body = &body{ReadCloser: response.Body, ctx: ctx, client: c, conn: cn, stop: stop, keep: !response.Close && !r.Close}
	return response, false, nil
}

// cause tells of a call that was interrupted why that was.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if t, ok := errors.AsType[net.Error](err); ok && t.Timeout() { // the context's own deadline may come a moment later
		return context.DeadlineExceeded
	}
	return err
}

// body is an answer's. It gives the connection back.
type body struct {
	io.ReadCloser
	ctx    context.Context
	client *Client
	conn   *conn // nil: given back
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
	// A call that was cancelled may still be about to change the connection's deadline.
	if quiet := b.stop(); quiet && whole && b.keep && cn.r.Buffered() == 0 {
		b.client.put(cn)
	} else {
		b.client.drop(cn)
	}
}

// get gives an idle connection, unless a fresh one is wanted, or a new one.
func (c *Client) get(ctx context.Context, fresh bool) (cn *conn, reused bool, err error) {
	for !fresh {
		if cn = c.pop(); cn == nil {
			break
		}
		if s, ok := cn.Conn.(syscall.Conn); !ok || bulk.Quiet(s) == nil { // TLS does not tell: a call finds out
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

// put keeps a connection for the next call.
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

// expire closes connections that were idle for too long.
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

// forget takes the first idle connections away, for the caller to close. Callers hold mu.
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

// drop closes a connection of a call.
func (c *Client) drop(cn *conn) {
	c.mu.Lock()
	delete(c.conns, cn)
	c.mu.Unlock()
	cn.Close()
}

// CloseIdle closes the connections that no call uses. It reports whether those were all.
func (c *Client) CloseIdle() (empty bool) {
	c.mu.Lock()
	idle := c.forget(len(c.idle))
	empty = len(c.conns) == 0
	c.mu.Unlock()
	closeAll(idle)
	return empty
}

// Abort closes all connections. The calls on them fail.
func (c *Client) Abort() {
	c.mu.Lock()
	all := c.forget(len(c.idle))
	for cn := range c.conns {
		all = append(all, cn) // its call drops it
	}
	c.mu.Unlock()
	closeAll(all)
}

// Close ends the client: Abort, and later calls fail.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	if c.sweep != nil {
		c.sweep.Stop()
	}
	c.mu.Unlock()
	c.Abort()
}
