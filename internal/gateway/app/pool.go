package app

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
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
	counts    *poolCounts
	scheduler *balance.Scheduler
	isGone    atomic.Bool // the configuration no longer has it
	isUsable  atomic.Bool // some worker can be given requests, or may be soon
	share     atomic.Int64

	// Guarded by Proxy.mu.
	workers  []*worker
	byMember map[*balance.Worker]*worker
}

// worker is the server at an address. It keeps its state when its name, its pool or its slots change.
type worker struct {
	address
	transport *http.Transport
	due       chan struct{}      // has a value when a check is due
	stop      context.CancelFunc // stops the checks

	requests       atomic.Int64 // in flight
	ended          atomic.Int64 // end of the last request: Unix time in nanoseconds
	served, failed atomic.Uint64
	isGiven        atomic.Bool // it is given requests
	isUsable       atomic.Bool // it may be given requests if no other worker is

	// Guarded by Proxy.mu.
	name   string
	slots  int
	pool   *pool
	member *balance.Worker
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
	return balance.Member{Name: w.address.String(), Slots: w.slots, Usable: w.isUsable.Load, Ready: func() error {
		if w.isGiven.Load() {
			return nil
		}
		return errNotReady
	}}
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
	p      *Proxy
	worker *worker
	name   string // of the worker
	pool   *pool
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
	s.took = time.Since(s.taken)
	s.pool.counts.service.Observe(s.took.Seconds())
	switch how {
	case balance.OK:
		w.served.Add(1)
	case balance.Failed:
		w.failed.Add(1)
		s.p.Metrics.failures.WithLabelValues(s.name).Inc()
		w.requestCheck()
	}
	w.ended.Store(s.p.now().UnixNano())
	w.requests.Add(-1)
	s.seat.Done(how)
}

// take waits for a slot of a worker that was not tried. The errors are of kind Exhausted if too many requests wait, or
// this one did for too long, and Unavailable if there is no worker.
func (e *exchange) take(tried []*seat) (*seat, error) {
	p, stage, began := e.p, inflight.From(e.ctx), time.Now()
	work := balance.Work{}
	if p.Caller != nil {
		work.Caller = p.Caller(e.from.Client)
	}
	for _, s := range tried {
		work.Tried = append(work.Tried, s.worker.address.String())
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
			p.Metrics.countRefused(chosen.name, err, time.Since(began), t.Queue.Wait)
			if fault.Is(err, fault.Unavailable) {
				err = p.unavailable(chosen)
			}
			return nil, err
		}
		if s := p.seatOf(chosen, got); s != nil {
			stage.SetStage(inflight.Remote)
			chosen.counts.queue.Observe(s.taken.Sub(began).Seconds())
			return s, nil
		}
		got.Done(balance.Cut)
	}
}

// seatOf returns the seat of a request, or nil if its worker was removed or drained meanwhile. So a drained worker
// without requests gets none, and may be stopped.
func (p *Proxy) seatOf(pool *pool, got *balance.Seat) *seat {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := pool.byMember[got.Worker()]
	if w == nil || w.isDrained {
		return nil
	}
	w.requests.Add(1)
	return &seat{p: p, worker: w, name: w.name, pool: pool, taken: time.Now(), seat: got}
}

var errNoWorker = fault.Retry(fault.Unavailable, fault.RetrySoon, "the application has no worker")

// unavailable returns the error for a client when no worker can be used. The reason is for the log.
func (p *Proxy) unavailable(pool *pool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	drained := 0
	var why []string
	for _, w := range pool.workers {
		if w.isDrained {
			drained++
			why = append(why, w.name+" is drained")
		} else {
			why = append(why, w.name+": "+w.why)
		}
	}
	msg, after := "no application worker can be reached; try again", fault.RetrySoon
	if drained == len(pool.workers) {
		msg, after = "all application workers are being taken out of service; try again later", fault.RetryMuchLater
	}
	return &fault.Error{Kind: fault.Unavailable, Msg: msg, RetryAfter: after,
		Err: errors.New(strings.Join(why[:min(len(why), 8)], "; "))}
}
