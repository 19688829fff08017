package app

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/fault"
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
	free   func(failed bool)
}

// Done gives the worker back; failed says that it was its fault that the request had no good answer. More than once does nothing.
func (s *seat) Done(failed bool) { s.once.Do(func() { s.free(failed) }) }

// worker is one that requests are relayed to.
type worker struct {
	WorkerOptions
	conns  *conns
	member *balance.Worker
}

// pool is some workers that are alike.
type pool struct {
	slots   *balance.Slots
	workers []*worker
	members []*balance.Worker
	choice  *balance.Workers
}

func newPool(o *Options) (*pool, error) {
	p := &pool{choice: balance.NewWorkers(nil)}
	limits := o.Queue
	limits.Slots = 0
	var members []balance.Member
	for _, w := range o.Workers {
		w.Slots = max(w.Slots, 1)
		c, err := newConns(w.Address, w.Slots, o)
		if err != nil {
			p.close()
			return nil, err
		}
		p.workers = append(p.workers, &worker{WorkerOptions: w, conns: c})
		members = append(members, balance.Member{Name: w.Name, Weight: w.Weight})
		limits.Slots += w.Slots
	}
	p.slots = balance.NewSlots(limits, balance.Clock{})
	p.members = p.choice.Set(members)
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
	release, waited, err := p.pool.slots.Acquire(ctx, caller)
	if err != nil {
		return nil, err
	}
	var tried []string
	for _, w := range a.tried {
		tried = append(tried, w.Name)
	}
	i, reason := p.pool.choice.Assign(p.pool.members, tried)
	if i < 0 {
		release()
		return nil, fault.Retry(fault.Unavailable, time.Second, "no application worker can answer now; try again")
	}
	return &seat{worker: p.pool.workers[i], reason: reason, waited: waited, free: func(failed bool) {
		p.pool.choice.Done(p.pool.members[i], failed)
		release()
	}}, nil
}
