package app

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// pool is a set of workers that are alike. It gets a share of the requests.
type pool struct {
	name      string
	metrics   *Metrics
	counts    *poolCounts
	log       *slog.Logger
	now       func() time.Time
	isChecked bool // its workers have health checks
	blackout  time.Duration
	scheduler *balance.Scheduler
	isGone    atomic.Bool // the configuration no longer has it
	isUsable  atomic.Bool // some worker can be given requests, or may be soon
	share     atomic.Int64

	mu         sync.Mutex // taken before that of the scheduler
	drainShare float64
	workers    []*worker // replaced, never changed
	byMember   map[*balance.Worker]*worker
}

// worker is a member of a pool.
type worker struct {
	WorkerOptions
	backend *backend
	pool    *pool
	member  *balance.Worker
	due     chan struct{}      // has a value when a check is due
	stop    context.CancelFunc // stops the checks

	served, failed atomic.Uint64
	isGiven        atomic.Bool // it is given requests
	isUsable       atomic.Bool // it may be given requests if no other worker is

	// Guarded by the pool's mu.
	vitals
	isDrained bool      // by the operator
	isResting bool      // it is given no requests because it is not ready
	changed   time.Time // last change of the health or the drain
	idleSince time.Time // while it is drained: a lower bound for the time since it has nothing in flight
	logs      *rate.Limiter
}

var errNotReady = errors.New("not ready")

// describe returns the worker for a scheduler. It is named by its address, so that its requests count whatever the
// worker is called.
func (w *worker) describe() balance.Member {
	return balance.Member{Name: w.Address, Slots: w.Slots, Usable: w.isUsable.Load, Ready: func() error {
		if w.isGiven.Load() {
			return nil
		}
		return errNotReady
	}}
}

// list returns the workers.
func (p *pool) list() []*worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.workers
}

// find returns the worker of a name, or nil.
func (p *pool) find(name string) *worker {
	if p == nil {
		return nil
	}
	for _, w := range p.list() {
		if w.Name == name {
			return w
		}
	}
	return nil
}

// choose draws a pool at random, in proportion to the shares. Pools without a usable worker leave their share to the
// others. If there is none with a share, another usable one is taken; if there is no usable one, any.
func choose(pools []*pool) *pool {
	if len(pools) == 1 {
		return pools[0]
	}
	var usable []*pool
	sum := int64(0)
	for _, p := range pools {
		if p.isUsable.Load() {
			usable = append(usable, p)
			sum += p.share.Load()
		}
	}
	switch {
	case len(usable) == 0:
		return pools[rand.IntN(len(pools))]
	case sum == 0:
		return usable[0]
	}
	n := rand.Int64N(sum)
	for _, p := range usable {
		if n -= p.share.Load(); n < 0 {
			return p
		}
	}
	return usable[0] // the shares have just changed
}

// seat is a slot of a worker for a request.
type seat struct {
	worker *worker
	class  Class
	taken  time.Time
	seat   *balance.Seat
	isDone atomic.Bool
	took   time.Duration // from taken to done
}

// done releases the slot. Further calls do nothing.
func (s *seat) done(how balance.Outcome) {
	if s.isDone.Swap(true) {
		return
	}
	w := s.worker
	now := time.Now()
	s.took = now.Sub(s.taken)
	w.pool.counts.service[s.class].Observe(s.took.Seconds())
	switch how {
	case balance.OK:
		w.served.Add(1)
	case balance.Failed:
		w.failed.Add(1)
		w.pool.metrics.failures.WithLabelValues(w.Name).Inc()
		w.requestCheck()
	}
	w.backend.ended.Store(now.UnixNano())
	w.backend.requests.Add(-1)
	s.seat.Done(how)
}

// take waits for a slot of a worker that was not tried. The errors are of kind Exhausted if too many requests wait, or
// this one did for too long, and Unavailable if there is no worker.
func (e *exchange) take(tried []*worker) (*seat, error) {
	p, stage, began := e.p, inflight.From(e.ctx), time.Now()
	work := balance.Work{}
	if p.Caller != nil {
		work.Caller = p.Caller(e.from.Client)
	}
	for _, w := range tried {
		work.Tried = append(work.Tried, w.Address)
	}
	for {
		t := p.table.Load()
		if len(t.pools) == 0 {
			return nil, errNoWorker
		}
		chosen := choose(t.pools)
		if len(tried) > 0 && !tried[0].pool.isGone.Load() {
			chosen = tried[0].pool
		}
		e.Pool = chosen.name
		stage.SetStage(inflight.Queued)
		got, err := chosen.scheduler.Acquire(e.ctx, work)
		switch {
		case err != nil && chosen.isGone.Load() && fault.Is(err, fault.Unavailable):
			continue
		case err != nil:
			p.Metrics.countRefused(chosen.name, err, time.Since(began), t.Routing.Queue.Wait)
			if fault.Is(err, fault.Unavailable) {
				err = chosen.unavailable()
			}
			return nil, err
		}
		w := chosen.workerOf(got)
		if w == nil { // it was just removed
			got.Done(balance.Cut)
			continue
		}
		stage.SetStage(inflight.Remote)
		w.backend.requests.Add(1)
		now := time.Now()
		e.Class = t.classOf(e.r.URL.Path)
		chosen.counts.queue[e.Class].Observe(now.Sub(began).Seconds())
		return &seat{worker: w, class: e.Class, taken: now, seat: got}, nil
	}
}

// workerOf returns the worker of a seat; nil if it was removed.
func (p *pool) workerOf(s *balance.Seat) *worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byMember[s.Worker()]
}

var errNoWorker = fault.Retry(fault.Unavailable, fault.RetrySoon, "the application has no worker")

// unavailable returns the error for a client when no worker can be used. The reason is for the log.
func (p *pool) unavailable() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	drained := 0
	var why []string
	for _, w := range p.workers {
		if w.isDrained {
			drained++
			why = append(why, w.Name+" is drained")
		} else {
			why = append(why, w.Name+": "+w.why)
		}
	}
	msg, after := "no application worker can be reached; try again", fault.RetrySoon
	if drained == len(p.workers) {
		msg, after = "all application workers are being taken out of service; try again later", fault.RetryMuchLater
	}
	return &fault.Error{Kind: fault.Unavailable, Msg: msg, RetryAfter: after,
		Err: errors.New(strings.Join(why[:min(len(why), 8)], "; "))}
}
