package app

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/inflight"
)

// ask is what the choice of a worker depends on.
type ask struct {
	method, path string
	header       http.Header // of the request
	client       netip.Addr  // invalid: on a Unix socket
	tried        []*worker   // that have failed this request
}

// seat is a worker that has been taken for a request.
type seat struct {
	worker *worker
	pool   string
	class  Class
	reason balance.Reason
	waited time.Duration
	taken  time.Time
	seat   *balance.Seat
	given  atomic.Bool // back
}

// Done gives the worker back. More than once does nothing.
func (s *seat) Done(how balance.Outcome) { s.done(how, time.Now()) }

// done is Done, now.
func (s *seat) done(how balance.Outcome, now time.Time) {
	if s.given.Swap(true) {
		return
	}
	w := s.worker
	p := w.pool
	p.counts.service[s.class].Observe(now.Sub(s.taken).Seconds())
	switch how {
	case balance.OK:
		w.served.Add(1)
	case balance.Failed:
		w.failed.Add(1)
		p.metrics.failures.WithLabelValues(w.Name).Inc()
		w.check()
	}
	w.conns.ended.Store(p.now().UnixNano())
	w.conns.requests.Add(-1)
	if w.wanted.CompareAndSwap(true, false) {
		w.handed <- s.seat.Hand(how, aside)
	} else {
		s.seat.Done(how)
	}
	w.release()
}

// worker is one that requests are relayed to.
type worker struct {
	WorkerOptions
	conns  *conns
	pool   *pool
	member *balance.Worker
	due    chan struct{}      // a check is
	stop   context.CancelFunc // ends the checks

	wanted atomic.Bool        // a check waits for a place
	handed chan *balance.Seat // that it is given; nil: there is none, it has to look again

	users          atomic.Int64 // requests that it has, and one for as long as it is in its pool
	served, failed atomic.Uint64
	given          atomic.Bool // it is given requests
	answers        atomic.Bool // it could be if no other is

	// Guarded by the pool's mu.
	vitals
	drained bool      // by the operator
	rests   bool      // it is not ready, and is given no requests for that
	changed time.Time // standing or drained
	idle    time.Time // while it is drained: since when it has nothing, or might have
	said    int       // lines that the log has of it since minute
	unsaid  int       // and that it has not
	minute  time.Time
}

// hold keeps a worker's connections open, unless it is gone.
func (w *worker) hold() bool {
	for n := w.users.Load(); n > 0; n = w.users.Load() {
		if w.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

func (w *worker) release() {
	if w.users.Add(-1) == 0 {
		w.conns.leave()
	}
}

var errNotReady = errors.New("it is not ready")

// member describes the worker for a scheduler.
func (w *worker) describe(slowStart time.Duration) balance.Member {
	return balance.Member{Name: w.Address, Weight: w.Weight, Slots: w.Slots, Auto: w.Auto, SlowStart: slowStart, Usable: w.answers.Load, Ready: func() error {
		if w.given.Load() {
			return nil
		}
		return errNotReady
	}}
}

// pool is some workers that are alike.
type pool struct {
	name      string
	metrics   *Metrics
	counts    *poolCounts
	log       *slog.Logger
	now       func() time.Time
	checked   bool // somebody asks the workers how they are
	blackout  time.Duration
	scheduler *balance.Scheduler
	gone      context.Context // ends when there is no such pool any more
	leave     context.CancelFunc

	could atomic.Bool // some worker can be used, or may be found to be usable
	share atomic.Int64

	mu         sync.Mutex // before that of the scheduler
	drainShare float64
	workers    []*worker // replaced, never changed
	byName     map[string]*worker
	byAddress  map[string]*worker // as the scheduler names them: what a process has counts for it, whatever it is called
}

func (p *pool) usable() bool { return p.could.Load() }

// list are the workers that the pool has now.
func (p *pool) list() []*worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.workers
}

// worker is the one that a seat is of; nil if it is gone.
func (p *pool) worker(s *balance.Seat) *worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.byAddress[s.Worker().Name()]
	if w == nil || w.member != s.Worker() || !w.hold() {
		return nil
	}
	return w
}

// take waits for a worker. Its errors have a kind: Exhausted if too many wait, or it would be for too long, Unavailable if there is no worker;
// the seat is of no worker then, and tells the pool.
func (p *Proxy) take(ctx context.Context, a ask) (*seat, error) {
	t := p.table.Load()
	class := t.Routing.Classes.of(a.path)
	work := balance.Work{Route: route(a.method, a.path), Fast: class == Fast}
	if p.Caller != nil {
		work.Caller = p.callers.of(a.client, p.Caller)
	}
	for _, w := range a.tried {
		work.Tried = append(work.Tried, w.Address)
	}
	running := inflight.From(ctx)
	running.At(inflight.Queued)
	began := time.Now()
	for {
		var chosen *pool
		if len(a.tried) > 0 && a.tried[0].pool.gone.Err() == nil {
			chosen = a.tried[0].pool
		} else if chosen = choose(t.pools, t.Routing.Sticky.key(&a)); chosen == nil {
			return &seat{}, errNoWorker
		}
		s, err := chosen.acquire(ctx, work)
		switch {
		case err != nil && chosen.gone.Err() != nil && ctx.Err() == nil && p.running.Err() == nil:
			t = p.table.Load()
			continue
		case err != nil:
			p.Metrics.refusedFor(chosen.name, err, time.Since(began), t.Routing.Queue.Wait)
			if fault.Is(err, fault.Unavailable) {
				err = chosen.unavailable()
			}
			return &seat{pool: chosen.name, waited: time.Since(began)}, err
		}
		w := chosen.worker(s)
		if w == nil { // it went this moment
			s.Done(balance.Cut)
			continue
		}
		running.At(inflight.Remote)
		w.conns.requests.Add(1)
		now := time.Now()
		waited := now.Sub(began)
		chosen.counts.assigned[s.Reason()].Inc()
		chosen.counts.queue[class].Observe(waited.Seconds())
		if s.Shared() {
			chosen.counts.shared.Inc()
		}
		return &seat{worker: w, pool: chosen.name, class: class, reason: s.Reason(), waited: waited, taken: now, seat: s}, nil
	}
}

// acquire takes a place, or waits for one: no longer than there is the pool.
func (p *pool) acquire(ctx context.Context, work balance.Work) (*balance.Seat, error) {
	w := waiting{Context: ctx, gone: p.gone}
	defer w.end()
	return p.scheduler.Acquire(&w, work)
}

// waiting is a context that ends with a request's, or with a pool. Most requests get a place at once: what joins the two is made for one who waits.
type waiting struct {
	context.Context
	gone   context.Context
	cancel context.CancelFunc
	stop   func() bool
}

// Done is asked by who waits, on the goroutine that called acquire.
func (w *waiting) Done() <-chan struct{} {
	if w.cancel == nil {
		w.Context, w.cancel = context.WithCancel(w.Context)
		w.stop = context.AfterFunc(w.gone, w.cancel)
	}
	return w.Context.Done()
}

func (w *waiting) end() {
	if w.cancel != nil {
		w.stop()
		w.cancel()
	}
}

var errNoWorker = fault.Retry(fault.Unavailable, time.Second, "the application has no worker")

// unavailable tells a client that no worker can be used. Which, and why, is for the operator.
func (p *pool) unavailable() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	drained := 0
	var why []string
	for _, w := range p.workers {
		if w.drained {
			drained++
			why = append(why, w.Name+" is drained")
		} else {
			why = append(why, w.Name+": "+w.why)
		}
	}
	msg, after := "no application worker can be reached; try again", time.Second
	if drained == len(p.workers) {
		msg, after = "all application workers are being taken out of service; try again later", 10*time.Second
	}
	return &fault.Error{Kind: fault.Unavailable, Msg: msg, RetryAfter: after, Err: errors.New(strings.Join(why[:min(len(why), 8)], "; "))}
}

// lookAgain is for how long a check relies on being handed a place: one that was given to a request whose client has just gone becomes free without that.
const lookAgain = time.Second

// aside is what a check of a worker is to the scheduler.
var aside = balance.Work{Fast: true, Aside: true, NoWait: true}

// checkSeat takes a place at a worker for a check, so that the check takes no thread from a request. If all are taken it gets the next one, before the
// requests that wait: it is not one of them, and a worker that has just failed one has to show how it is before the next. Nil: the worker is given no
// requests, or ctx has ended. One goroutine does that for a worker.
func (p *pool) checkSeat(ctx context.Context, w *worker) *balance.Seat {
	withdraw := func() *balance.Seat { // gives what was handed meanwhile
		if w.wanted.CompareAndSwap(true, false) {
			return nil
		}
		return <-w.handed
	}
	p.mu.Lock()
	work := aside
	work.Among = []*balance.Worker{w.member}
	p.mu.Unlock()
	wanted := false // all the time from when it is not known yet whether there is a place, lest one becomes free in between
	for w.given.Load() && ctx.Err() == nil {
		if !wanted {
			w.wanted.Store(true)
			wanted = true
		}
		s, err := p.scheduler.Acquire(ctx, work)
		if !fault.Is(err, fault.Exhausted) {
			if other := withdraw(); other != nil {
				other.Done(balance.OK)
			}
			return s // nil if the worker has just gone
		}
		select {
		case s = <-w.handed:
			wanted = false
		case <-w.due:
		case <-time.After(lookAgain):
		case <-ctx.Done():
		}
		if s != nil {
			return s
		}
	}
	if wanted {
		return withdraw()
	}
	return nil
}
