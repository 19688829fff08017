package app

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/bulk"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// conns are the connections to one worker: never more than it has slots, whoever uses them, health probes too. A thread of a worker may stay with
// a connection that is idle, and what comes on another one then waits for it, in front of workers of one thread for seconds. So idle ones are closed after
// a short time, and used before one is opened, but for checks, second tries and what a worker may take for malformed: these are new, and close an idle one
// where there would be too many.
//
// They are not those of package unaryhttp, which opens as many as there are calls, and whose calls may be sent twice. Safe for concurrent use.
type conns struct {
	network, address string
	host             string // for requests that have none
	connect, keep    time.Duration
	workers          atomic.Int64 // that have them: one under another name or in another pool takes over those of the one before
	listed           atomic.Int64 // of these, those that are given requests: not what one of before still has to do

	requests atomic.Int64 // that workers with them have, whatever their names
	ended    atomic.Int64 // the last of them: ns since 1970

	lookup  func(path string) (disk.ID, error) // disk.Stat
	looking atomic.Bool                        // a request is
	seen    atomic.Pointer[look]               // the last one; nil: there was none

	mu      sync.Mutex
	limit   int // 0: none
	closed  bool
	retired bool           // none is kept any more
	open    int            // in use, idle, or being opened
	idle    []*conn        // the last used one last
	waiting []chan handed  // for one of them, the first come first
	all     map[*conn]bool // those that are open
	sweep   *time.Timer    // runs while there are idle ones
}

// look is which Unix socket was there, and when.
type look struct {
	socket disk.ID
	at     time.Time
}

// handed is what one who waits is given: a connection, or the place for one.
type handed struct{ conn *conn }

// conn is one connection. A request has it for itself.
type conn struct {
	net.Conn
	buf    []byte // what was read and not used is buf[at:end]
	at     int
	end    int
	watch  watch
	quiet  *bulk.Probe
	until  time.Time // the deadline of both directions; zero: it is not known
	out    []byte    // a request's head, as it is written
	socket disk.ID
	since  time.Time // it is idle
	used   bool      // for a request before
}

// connBuffer is how much of an answer is read at once, unless its header is longer.
const connBuffer = 8 << 10

var errClosed = errors.New("the proxy was closed")

// newConns makes the connections to an address, as in WorkerOptions. None is opened.
func newConns(address string, limit int, o *Options) (*conns, error) {
	c := &conns{limit: limit, connect: o.ConnectTime, keep: o.KeepIdle, lookup: disk.Stat, all: map[*conn]bool{}}
	c.workers.Store(1)
	c.listed.Store(1)
	if path, ok := strings.CutPrefix(address, "unix:"); ok && path != "" {
		if !strings.HasPrefix(path, "@") && !strings.Contains(path, "..") { // others mean something else then
			path = filepath.Clean(path)
		}
		c.network, c.address, c.host = "unix", path, "localhost"
		return c, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
		return nil, fault.New(fault.Invalid, "%q is no address of an application worker: write unix:/run/app/w0.sock or http://127.0.0.1:3001", address)
	}
	port, err := strconv.ParseUint(cmp.Or(u.Port(), "80"), 10, 16)
	if err != nil || port == 0 {
		return nil, fault.New(fault.Invalid, "%q is no address of an application worker: its port has to be from 1 to 65535", address)
	}
	host := strings.ToLower(u.Hostname())
	if a, err := netip.ParseAddr(u.Hostname()); err == nil {
		host = a.Unmap().String()
	}
	c.network, c.address, c.host = "tcp", net.JoinHostPort(host, strconv.FormatUint(port, 10)), u.Host
	return c, nil
}

// String is the address, the same for all that mean it.
func (c *conns) String() string {
	if c.network == "unix" {
		return "unix:" + c.address
	}
	return "http://" + strings.Replace(strings.TrimSuffix(c.address, ":80"), "%", "%25", 1) // of a zone (RFC 6874)
}

// get gives an idle connection, or a new one; fresh: a new one in any case. Where there are as many as there may be it fails with errOccupied, unless it is patient,
// and waits.
func (c *conns) get(ctx context.Context, fresh, patient bool) (*conn, error) {
	there := c.there() // before the lock: a disk that hangs keeps one request waiting, and not the worker's others
	c.mu.Lock()
	for len(c.idle) > 0 && (!fresh || c.limit > 0 && c.open >= c.limit) {
		cn := c.idle[len(c.idle)-1]
		c.idle[len(c.idle)-1] = nil
		c.idle = c.idle[:len(c.idle)-1]
		if !fresh && cn.good(there) {
			c.mu.Unlock()
			return cn, nil
		}
		delete(c.all, cn)
		c.open--
		cn.Close()
	}
	if c.closed {
		c.mu.Unlock()
		return nil, errClosed
	}
	if c.limit <= 0 || c.open < c.limit {
		c.open++
		c.mu.Unlock()
		return c.dial(ctx)
	}
	if !patient {
		c.mu.Unlock()
		return nil, errOccupied
	}
	cn, err := c.wait(ctx)
	switch {
	case err != nil:
		return nil, err
	case cn == nil:
		return c.dial(ctx)
	case !fresh && cn.good(c.stat()):
		return cn, nil
	}
	cn.Close()
	c.mu.Lock()
	delete(c.all, cn)
	c.mu.Unlock()
	return c.dial(ctx) // in its place
}

// good tells whether an idle connection can be used: it is as it was left, and goes to the worker that is there now.
func (c *conn) good(socket disk.ID) bool {
	return c.socket == socket && c.quiet.Quiet() == nil
}

// errOccupied is the error of one who waited for a connection in vain: a worker of another name or in another pool has them all, still or by now.
var errOccupied = errors.New("all its connections are in use")

// wait waits for what another gives back: a connection, or the place of one, which is no connection; no longer than one may take to be opened. Callers hold
// mu; it unlocks it.
func (c *conns) wait(ctx context.Context) (*conn, error) {
	turn := make(chan handed, 1)
	c.waiting = append(c.waiting, turn)
	c.mu.Unlock()
	late := time.NewTimer(c.connect)
	defer late.Stop()
	err := errOccupied
	select {
	case got := <-turn:
		return got.conn, nil
	case <-late.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	c.mu.Lock()
	if i := slices.Index(c.waiting, turn); i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
		c.mu.Unlock()
		return nil, err
	}
	c.mu.Unlock()
	if got := <-turn; got.conn != nil {
		c.put(got.conn)
	} else {
		c.vacate()
	}
	return nil, err
}

// dial opens a connection in a place that was taken for it.
func (c *conns) dial(ctx context.Context) (*conn, error) {
	socket := c.stat() // before: the one that is replaced meanwhile is dropped at its next use
	d := net.Dialer{Timeout: c.connect, KeepAlive: -1}
	nc, err := d.DialContext(ctx, c.network, c.address)
	if err != nil {
		c.vacate()
		return nil, err
	}
	raw, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		nc.Close()
		c.vacate()
		return nil, err
	}
	cn := &conn{Conn: nc, quiet: bulk.NewProbe(raw), buf: make([]byte, connBuffer), out: make([]byte, 0, 2<<10), socket: socket}
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.all[cn] = true
	}
	c.mu.Unlock()
	if closed {
		nc.Close()
		c.vacate()
		return nil, errClosed
	}
	return cn, nil
}

// put gives back a connection that the next request may use.
func (c *conns) put(cn *conn) {
	cn.used = true
	c.mu.Lock()
	if c.closed || c.retired || !c.all[cn] || c.crowded() {
		c.mu.Unlock()
		c.drop(cn)
		return
	}
	if turn := c.next(); turn != nil {
		c.mu.Unlock()
		turn <- handed{cn}
		return
	}
	cn.since = time.Now()
	c.idle = append(c.idle, cn)
	if c.sweep == nil {
		c.sweep = time.AfterFunc(c.keep, c.expire)
	}
	c.mu.Unlock()
}

// drop closes a connection that was got.
func (c *conns) drop(cn *conn) {
	cn.Close()
	c.release(cn)
}

// release takes a connection out of what counts: it is closed, or speaks another protocol now.
func (c *conns) release(cn *conn) {
	c.mu.Lock()
	counted := c.all[cn]
	delete(c.all, cn)
	c.mu.Unlock()
	if counted {
		c.vacate()
	}
}

// vacate gives a place back.
func (c *conns) vacate() {
	c.mu.Lock()
	var turn chan handed
	if !c.crowded() {
		turn = c.next()
	}
	if turn == nil {
		c.open--
	}
	c.mu.Unlock()
	if turn != nil {
		turn <- handed{}
	}
}

// next is the first that waits; nil for nobody. Callers hold mu.
func (c *conns) next() chan handed {
	if len(c.waiting) == 0 {
		return nil
	}
	turn := c.waiting[0]
	c.waiting = slices.Delete(c.waiting, 0, 1)
	return turn
}

// expire closes connections that were idle for too long.
func (c *conns) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for n < len(c.idle) && time.Since(c.idle[n].since) >= c.keep {
		n++
	}
	c.forget(n)
	if c.sweep = nil; len(c.idle) > 0 && !c.closed {
		c.sweep = time.AfterFunc(max(time.Until(c.idle[0].since.Add(c.keep)), time.Millisecond), c.expire)
	}
}

// forget closes the first n idle connections. Callers hold mu, and nobody waits if n is more than 0: there are idle ones.
func (c *conns) forget(n int) {
	for _, cn := range c.idle[:n] {
		cn.Close()
		delete(c.all, cn)
		c.open--
	}
	c.idle = slices.Delete(c.idle, 0, n)
}

// crowded tells whether there are more than there may be, since a worker has fewer slots than before. Callers hold mu.
func (c *conns) crowded() bool { return c.limit > 0 && c.open > c.limit }

// resize changes how many there may be.
func (c *conns) resize(limit int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = limit
	for limit <= 0 || c.open < limit {
		turn := c.next()
		if turn == nil {
			break
		}
		c.open++
		turn <- handed{} // it has room for one
	}
	if limit > 0 {
		c.forget(min(max(c.open-limit, 0), len(c.idle)))
	}
}

// share tells that one more worker has them, unless none has them any more: they are closed.
func (c *conns) share() bool {
	for n := c.workers.Load(); ; n = c.workers.Load() {
		if n == 0 {
			return false
		}
		if c.workers.CompareAndSwap(n, n+1) {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listed.Add(1)
	c.retired = false
	return true
}

// leave tells that a worker has no more use for them.
func (c *conns) leave() {
	if c.workers.Add(-1) == 0 {
		c.close()
	}
}

// retire tells that a worker is given no more requests. If it was the last one, the connections that nobody uses are closed, and the others when they are given
// back.
func (c *conns) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listed.Add(-1) > 0 {
		return
	}
	c.retired = true
	c.forget(len(c.idle))
}

// close closes all connections; what runs on them fails.
func (c *conns) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.sweep != nil {
		c.sweep.Stop()
	}
	c.forget(len(c.idle))
	for cn := range c.all {
		cn.Close() // who uses it drops it
	}
}

// lookEvery is for how long a Unix socket is taken to be the one that it was: what replaces it gets its first request so much later.
const lookEvery = 2 * time.Millisecond

// there is the socket that a look found a moment ago. One request at a time looks; the others go by the look before, however long this one takes.
func (c *conns) there() disk.ID {
	if c.network != "unix" {
		return disk.ID{}
	}
	now, seen := time.Now(), c.seen.Load()
	if seen != nil && (now.Sub(seen.at) < lookEvery || !c.looking.CompareAndSwap(false, true)) {
		return seen.socket
	}
	next := &look{c.stat(), now}
	c.seen.Store(next)
	c.looking.Store(false)
	return next.socket
}

// stat tells the socket that is there now from another one under the same name; the zero ID for none, and for TCP.
func (c *conns) stat() disk.ID {
	if c.network != "unix" {
		return disk.ID{}
	}
	id, _ := c.lookup(c.address) // the zero one after an error: idle connections are not used
	return id
}

// fill reads more from the worker, behind what is there.
func (c *conn) fill() error {
	switch {
	case c.at == c.end:
		c.at, c.end = 0, 0
	case c.end < len(c.buf):
	case c.at > 0:
		c.end = copy(c.buf, c.buf[c.at:c.end])
		c.at = 0
	case len(c.buf) < maxHeader:
		c.buf = append(c.buf, make([]byte, maxHeader-len(c.buf))...)
	default:
		return errLongHeader
	}
	n, err := c.Conn.Read(c.buf[c.end:])
	c.end += n
	if n > 0 {
		return nil
	}
	return cmp.Or(err, io.ErrNoProgress)
}

// interrupt ends what waits for the connection, for good.
func (c *conn) interrupt() { _ = c.SetDeadline(time.Unix(1, 0)) }
