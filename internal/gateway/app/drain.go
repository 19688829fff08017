package app

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// allowed returns how many of the pool's workers may be out of service at the same time: a third, and always one. The
// others have to take their requests. The caller holds Proxy.mu.
func (p *pool) allowed() int { return max(1, len(p.workers)/3) }

// serves reports whether a worker is given requests. The caller holds Proxy.mu.
func (w *worker) serves() bool {
	return !w.isDrained && !w.isResting && (w.health == up || w.health == unready)
}

// othersOut returns the names of the workers that are out of service, without w. The caller holds
// Proxy.mu.
func (p *pool) othersOut(w *worker) (names []string) {
	for _, other := range p.workers {
		if other != w && !other.serves() {
			names = append(names, other.name)
		}
	}
	return names
}

// settle decides which workers are given requests. Workers that are not ready get none, in the order in which they
// became so, up to the number of workers that may be out of service. The others still get requests, so that the rest of
// the pool is not overloaded. The caller holds mu.
func (p *Proxy) settle(pool *pool) {
	var candidates []*worker
	for _, w := range pool.workers {
		if w.health != unready {
			w.isResting = false
		} else if !w.isResting && !w.isDrained {
			candidates = append(candidates, w)
		}
	}
	slices.SortStableFunc(candidates, func(a, b *worker) int { return a.changed.Compare(b.changed) })
	for _, w := range candidates {
		if len(pool.othersOut(w)) < pool.allowed() {
			w.isResting = true
			p.logChange(w, slog.LevelWarn, "application worker not ready", "why", w.why)
		}
	}
	anyUsable := false
	for _, w := range pool.workers {
		isUsable := !w.isDrained && w.health != down
		w.isGiven.Store(w.serves())
		w.isUsable.Store(isUsable)
		anyUsable = anyUsable || isUsable
	}
	pool.isUsable.Store(anyUsable)
	pool.scheduler.Changed()
}

// record adds the result of a check. It reports whether the worker may be down and is still given requests.
func (p *Proxy) record(w *worker, r result, why string) (isDoubtful bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := w.health
	if w.vitals.record(r, why, &p.Health) {
		w.changed = p.now()
		switch {
		case w.health == down:
			p.logChange(w, slog.LevelWarn, "application worker down", "why", w.why)
		case w.health == up && was != starting:
			p.logChange(w, slog.LevelInfo, "application worker ready")
		}
		p.settle(w.pool)
	}
	return w.deaths > 0 && w.serves()
}

// logChange logs a change of a worker, unless it changes all the time. The caller holds mu.
func (p *Proxy) logChange(w *worker, level slog.Level, message string, attrs ...any) {
	if w.logs.AllowN(p.now(), 1) {
		p.Log.Log(context.Background(), level, message, append([]any{"worker", w.name, "pool", w.pool.name}, attrs...)...)
	}
}

// canStop reports whether a drained worker has been idle for the blackout. The caller holds mu.
func (p *Proxy) canStop(w *worker) bool {
	if !w.isDrained || w.requests.Load() > 0 {
		return false
	}
	now, ended := p.now(), time.Unix(0, w.ended.Load())
	return now.Sub(w.idleSince) >= p.Blackout && now.Sub(ended) >= p.Blackout
}

// WorkerState describes a worker.
type WorkerState struct {
	Name     string    `json:"name"`
	Pool     string    `json:"pool"`
	Address  string    `json:"address"`
	State    string    `json:"state"`         // up, starting, "not ready", down, draining, drained
	Why      string    `json:"why,omitempty"` // reason for not being up
	Since    time.Time `json:"-"`
	Given    bool      `json:"given"` // it is given requests
	InFlight int       `json:"in_flight"`
	Slots    int       `json:"slots"`
	Served   uint64    `json:"served"`
	Failed   uint64    `json:"failed"`
}

// Workers returns the states of all workers, by pool, in the order of the configuration.
func (p *Proxy) Workers() (list []WorkerState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pool := range p.table.Load().pools {
		for _, w := range pool.workers {
			list = append(list, p.state(w))
		}
	}
	return list
}

// state describes a worker. The caller holds mu.
func (p *Proxy) state(w *worker) WorkerState {
	s := WorkerState{Name: w.name, Pool: w.pool.name, Address: w.address.String(), State: w.health.String(), Why: w.why,
		Since: w.changed, Given: w.serves(),
		InFlight: int(w.requests.Load()), Slots: w.slots, Served: w.served.Load(), Failed: w.failed.Load()}
	switch {
	case p.canStop(w):
		s.State = "drained"
	case w.isDrained:
		s.State = "draining"
	}
	return s
}

// Drain keeps new requests from a worker. Requests in flight continue. Unless it is forced, it fails with kind
// Exhausted if too many workers would be out of service. The error for an unknown name is of kind NotFound.
func (p *Proxy) Drain(name string, force bool) (WorkerState, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, err := p.find(name)
	if err != nil {
		return WorkerState{}, err
	}
	if w.isDrained {
		return p.state(w), nil
	}
	out, allowed := w.pool.othersOut(w), w.pool.allowed()
	if len(out) >= allowed && w.serves() && !force {
		return WorkerState{}, fault.New(fault.Exhausted,
			"%s is not drained: a third of the pool %q, %d of %d workers, may be out "+
				"of service; use --wait or --force, or wait for %s",
			w.name, w.pool.name, allowed, len(w.pool.workers), strings.Join(out[:min(len(out), 8)], ", "))
	}
	w.isDrained, w.changed = true, p.now()
	w.idleSince = w.changed
	p.settle(w.pool)
	w.transport.CloseIdleConnections() // they could keep the process from ending
	return p.state(w), nil
}

// Undrain ends a drain. The worker may be a new process, so it is given requests once a check has found it ready.
func (p *Proxy) Undrain(name string) (WorkerState, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, err := p.find(name)
	if err != nil {
		return WorkerState{}, err
	}
	if w.isDrained {
		w.isDrained = false
		w.transport.CloseIdleConnections()
		p.resetHealth(w)
		p.settle(w.pool)
		w.requestCheck()
	}
	return p.state(w), nil
}

// find returns the worker of a name. The caller holds mu.
func (p *Proxy) find(name string) (*worker, error) {
	var known []string
	for _, pool := range p.table.Load().pools {
		for _, w := range pool.workers {
			if w.name == name {
				return w, nil
			}
			known = append(known, w.name)
		}
	}
	if len(known) > 20 {
		known = append(known[:20], "and others")
	}
	return nil, fault.New(fault.NotFound, "application worker %.80q does not exist: known are %s", name,
		strings.Join(known, ", "))
}
