package sidechannel

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// PoolOptions configure a Pool. Zero values mean the defaults.
type PoolOptions struct {
	// Dial connects to the node's port. The connection is a *net.TCPConn, a *net.UnixConn, a *bulk.Conn, or a *tls.Conn
	// that has chosen http/1.1.
	Dial    func(ctx context.Context) (net.Conn, error)
	Host    string             // of the request; "" for "node"
	Header  func() http.Header // returns the current credentials of a control call; may be nil
	Pump    *bulk.Pump
	NoFiles bool          // over a Unix socket the node sends bytes and does not pass files
	MaxIdle int           // maximum number of idle channels
	Idle    time.Duration // maximum idle time, at most half of the node's
	Stall   time.Duration // maximum time without progress of the node: bytes received or sent, or an acknowledgment
	Metrics *Metrics
	Log     *slog.Logger
}

// Pool is a gateway's end of the channels to one node. It is safe for concurrent use.
type Pool struct {
	o      PoolOptions
	limits limits
	watch  sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	retired  bool
	plain    time.Time // no files are requested before this time
	failures int       // of files
	lines    map[*line]bool
	idle     []*line // the last used one last
}

// NewPool creates a Pool without channels.
func NewPool(o PoolOptions) *Pool {
	o.MaxIdle = cmp.Or(o.MaxIdle, defaultMaxIdle)
	return &Pool{
		o: o,
		limits: limits{
			pump: o.Pump, idle: cmp.Or(o.Idle, defaultPoolIdle), stall: cmp.Or(o.Stall, defaultStall),
			metrics: o.Metrics, log: o.Log, buffers: &buffers{},
		},
		lines: map[*line]bool{},
	}
}

// Get returns a channel for one transfer: an idle one that is still open, or a new one, which is opened with ctx. The
// caller has to send its Name and Transfer to the node, and to Release it.
func (p *Pool) Get(ctx context.Context) (*Channel, error) {
	for l := p.pop(); l != nil; l = p.pop() {
		l.mu.Lock()
		if l.files && !p.takesFiles() {
			l.close(closeSurplus, nil)
		}
		if !l.closed && l.running == nil && l.first == nil {
			if err := l.peek(); err != nil {
				l.close(closePeer, err)
			} else {
				c := l.acquire()
				l.mu.Unlock()
				return c, nil
			}
		}
		l.mu.Unlock()
	}
	return p.open(ctx)
}

func (p *Pool) pop() *line {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if n == 0 {
		return nil
	}
	l := p.idle[n-1]
	p.idle = p.idle[:n-1]
	return l
}

// open opens a channel.
func (p *Pool) open(ctx context.Context) (*Channel, error) {
	o, err := p.dial(ctx)
	if err != nil {
		result := "failed"
		if fault.Is(err, fault.Exhausted) {
			result = "full"
		}
		p.limits.metrics.opened.WithLabelValues(result).Inc()
		return nil, err
	}
	l := newLine(o.socket, &p.limits, p, o.name)
	l.opener, l.files, l.hindered = true, o.files, p.suspendFiles
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.lines[l] = true
		p.watch.Add(1)
	}
	p.mu.Unlock()
	if closed {
		l.shut(closeShutdown, nil)
		return nil, errPoolClosed
	}
	p.limits.metrics.opened.WithLabelValues("ok").Inc()
	l.mu.Lock()
	c := l.acquire()
	l.mu.Unlock()
	go func() {
		defer p.watch.Done()
		l.watch()
	}()
	return c, nil
}

// After a file that did not arrive or could not be read, no files are requested for a time. It doubles each time,
// because a failure may have cost a clone.
var withoutFiles = retry.Policy{First: 10 * time.Minute, Max: 24 * time.Hour}

// suspendFiles is called when files of the node do not arrive here.
func (p *Pool) suspendFiles(err error) {
	p.mu.Lock()
	now := time.Now()
	again := !now.Before(p.plain) // not one of several concurrent failures
	if again {
		p.failures++
		p.plain = now.Add(withoutFiles.Pause(p.failures))
	}
	pause := withoutFiles.Pause(p.failures)
	p.mu.Unlock()
	if again {
		p.limits.log.Warn("cannot use a file from the node; packs are sent as bytes for a while", "for",
			pause, "error", err)
	}
}

func (p *Pool) takesFiles() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.o.NoFiles && time.Now().After(p.plain)
}

var errPoolClosed = fault.New(fault.Unavailable, "this gateway ends")

// Forget closes the idle channels after a node was lost, because they may be dead without an error.
func (p *Pool) Forget() { p.drop(closePeer, errors.New("the node was lost")) }

// drop closes the idle channels.
func (p *Pool) drop(why reason, cause error) {
	p.mu.Lock()
	idle := slices.Clone(p.idle)
	p.mu.Unlock()
	for _, l := range idle {
		l.mu.Lock()
		if l.running == nil {
			l.close(why, cause)
		}
		l.mu.Unlock()
	}
}

// Close closes all channels, including those with a transfer, and waits for the goroutines that watch them.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	all := slices.Collect(maps.Keys(p.lines))
	p.mu.Unlock()
	for _, l := range all {
		l.shut(closeShutdown, nil)
	}
	p.watch.Wait()
	return nil
}

// Retire closes idle channels. Each of the others is closed when its transfer has ended. Get still opens channels.
// empty reports whether no channel is left.
func (p *Pool) Retire() (empty bool) {
	p.mu.Lock()
	p.retired = true
	p.mu.Unlock()
	p.drop(closeSurplus, nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lines) == 0
}

// settled implements owner: it keeps a channel, unless there are MaxIdle idle ones.
func (p *Pool) settled(l *line) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.retired || len(p.idle) >= p.o.MaxIdle {
		return false
	}
	p.idle = append(p.idle, l)
	return true
}

// gone implements owner.
func (p *Pool) gone(l *line) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.lines, l)
	if i := slices.Index(p.idle, l); i >= 0 {
		p.idle = slices.Delete(p.idle, i, i+1)
	}
}

// peek reports whether the peer of an idle line has closed it, or has sent unexpected bytes. It does not wait or read.
// With TLS it cannot detect that; the line's watch does.
func (l *line) peek() error {
	if l.kernel == nil {
		return nil
	}
	return bulk.Quiet(l.kernel)
}
