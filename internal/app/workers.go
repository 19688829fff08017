package app

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/balance"
)

// ask is what the choice of a worker depends on.
type ask struct {
	method, path string
	header       func(name string) string // of the request
	client       netip.Addr               // invalid: on a Unix socket
	tried        []*worker                // that have failed this request
}

// seat is a worker that has been taken for a request.
type seat struct {
	worker *worker
	pool   string
	reason balance.Reason
	waited time.Duration
	once   sync.Once
	free   func(balance.Outcome)
}

// Done gives the worker back. More than once does nothing.
func (s *seat) Done(how balance.Outcome) { s.once.Do(func() { s.free(how) }) }

// worker is one that requests are relayed to.
type worker struct {
	WorkerOptions
	conns  *conns
	member *balance.Worker
}

// pool is some workers that are alike.
type pool struct {
	scheduler *balance.Scheduler
	workers   []*worker
	members   []*balance.Worker
}

func newPool(o *Options) (*pool, error) {
	p := &pool{scheduler: balance.New(balance.Options{Limits: o.Queue})}
	var members []balance.Member
	for _, w := range o.Workers {
		w.Slots = max(w.Slots, 1)
		c, err := newConns(w.Address, w.Slots, o)
		if err != nil {
			p.close()
			return nil, err
		}
		p.workers = append(p.workers, &worker{WorkerOptions: w, conns: c})
		members = append(members, balance.Member{Name: w.Name, Weight: w.Weight, Slots: w.Slots})
	}
	p.members = p.scheduler.Set(members)
	return p, nil
}

func (p *pool) close() {
	for _, w := range p.workers {
		w.conns.close()
	}
}

// take waits for a worker. Its errors have a kind: Exhausted if too many wait, Unavailable if there is no worker.
func (p *Proxy) take(ctx context.Context, a ask) (*seat, error) {
	caller := balance.Caller("")
	if p.Caller != nil {
		caller = p.Caller(a.client)
	}
	var tried []string
	for _, w := range a.tried {
		tried = append(tried, w.Name)
	}
	taken, err := p.pool.scheduler.Acquire(ctx, balance.Work{Caller: caller, Tried: tried})
	if err != nil {
		return nil, err
	}
	i := slices.Index(p.pool.members, taken.Worker())
	return &seat{worker: p.pool.workers[i], reason: taken.Reason(), waited: taken.Waited(), free: taken.Done}, nil
}
