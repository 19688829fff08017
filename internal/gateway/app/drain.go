package app

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// allowed returns how many of the pool's workers may be out of service at the same time.
func (p *pool) allowed() int { return max(1, int(p.drainShare*float64(len(p.workers))+1e-9)) }

// serves reports whether a worker is given requests. The caller holds the pool's mu.
func (w *worker) serves() bool {
	return !w.isDrained && !w.isResting && (w.health == up || w.health == unready)
}

// othersOut returns the names of the workers that are out of service, without w. The caller holds mu.
func (p *pool) othersOut(w *worker) (names []string) {
	for _, other := range p.workers {
		if other != w && !other.serves() {
			names = append(names, other.Name)
		}
	}
	return names
}

// settle decides which workers are given requests. Workers that are not ready get none, in the order in which they
// became so, up to the number of workers that may be out of service. The others still get requests, so that the rest of
// the pool is not overloaded. The caller holds mu.
func (p *pool) settle() {
	var candidates []*worker
	for _, w := range p.workers {
		if w.health != unready {
			w.isResting = false
		} else if !w.isResting && !w.isDrained {
			candidates = append(candidates, w)
		}
	}
	slices.SortStableFunc(candidates, func(a, b *worker) int { return a.changed.Compare(b.changed) })
	for _, w := range candidates {
		if len(p.othersOut(w)) < p.allowed() {
			w.isResting = true
			p.logChange(w, slog.LevelWarn, "application worker not ready", "why", w.why)
		}
	}
	anyUsable := false
	for _, w := range p.workers {
		isUsable := !w.isDrained && w.health != down
		w.isGiven.Store(w.serves())
		w.isUsable.Store(isUsable)
		anyUsable = anyUsable || isUsable
	}
	p.isUsable.Store(anyUsable)
	p.scheduler.Changed()
}

// record adds the result of a check. It reports whether the worker may be down and is still given requests.
func (p *pool) record(w *worker, r result, why string, h *Health) (isDoubtful bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := w.health
	if w.vitals.record(r, why, h) {
		w.changed = p.now()
		switch {
		case w.health == down:
			p.logChange(w, slog.LevelWarn, "application worker down", "why", w.why)
		case w.health == up && was != starting:
			p.logChange(w, slog.LevelInfo, "application worker ready")
		}
		p.settle()
	}
	return w.deaths > 0 && w.serves()
}

// logChange logs a change of a worker, unless it changes all the time. The caller holds mu.
func (p *pool) logChange(w *worker, level slog.Level, message string, attrs ...any) {
	if w.logs.AllowN(p.now(), 1) {
		p.log.Log(context.Background(), level, message, append([]any{"worker", w.Name, "pool", p.name}, attrs...)...)
	}
}

// reset forgets the checks of a worker. Without checks it is up.
func (w *worker) reset(isChecked bool, now time.Time) {
	w.vitals, w.changed = vitals{why: "not checked yet"}, now
	if !isChecked {
		w.vitals = vitals{health: up}
	}
}

// drain keeps new requests from a worker. Unless it is forced, it fails with kind Exhausted if too many workers would
// be out of service.
func (p *pool) drain(w *worker, force bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.isDrained {
		return nil
	}
	if out := p.othersOut(w); len(out) >= p.allowed() && w.serves() && !force {
		return fault.New(fault.Exhausted, "%s is not drained: the pool %q may have %d of %d workers out of service "+
			"(app.drain_share); use --wait or --force, or wait for %s",
			w.Name, p.name, p.allowed(), len(p.workers), strings.Join(out[:min(len(out), 8)], ", "))
	}
	w.isDrained, w.changed = true, p.now()
	w.idleSince = w.changed
	p.settle()
	w.backend.transport.CloseIdleConnections() // they could keep the process from ending
	return nil
}

// undrain ends a drain. The worker may be a new process, so its checks start again.
func (p *pool) undrain(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !w.isDrained {
		return
	}
	w.isDrained = false
	w.backend.transport.CloseIdleConnections()
	w.reset(p.isChecked, p.now())
	p.settle()
	w.requestCheck()
}

// canStop reports whether a drained worker has been idle for the blackout. The caller holds mu.
func (p *pool) canStop(w *worker) bool {
	if !w.isDrained || w.backend.requests.Load() > 0 {
		return false
	}
	now, ended := p.now(), time.Unix(0, w.backend.ended.Load())
	return now.Sub(w.idleSince) >= p.blackout && now.Sub(ended) >= p.blackout
}

// State describes a worker.
type State struct {
	Name, Pool, Address string
	State               string // up, starting, "not ready", down, draining, drained
	Why                 string // reason for not being up
	Since               time.Time
	Given               bool // it is given requests
	InFlight            int
	Slots               int
	Served, Failed      uint64
}

// Workers returns the states of all workers, by pool, in the order of the configuration.
func (p *Proxy) Workers() (list []State) {
	for _, pool := range p.table.Load().pools {
		for _, w := range pool.list() {
			list = append(list, pool.state(w))
		}
	}
	return list
}

func (p *pool) state(w *worker) State {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := State{Name: w.Name, Pool: p.name, Address: w.Address, State: "up", Why: w.why, Since: w.changed,
		Given:    w.serves(),
		InFlight: int(w.backend.requests.Load()), Slots: w.Slots, Served: w.served.Load(), Failed: w.failed.Load()}
	switch {
	case p.canStop(w):
		s.State = "drained"
	case w.isDrained:
		s.State = "draining"
	case w.health == starting:
		s.State = "starting"
	case w.health == down:
		s.State = "down"
	case w.health == unready:
		s.State = "not ready"
	}
	return s
}

// Drain keeps new requests from a worker. Requests in flight continue. Unless it is forced, it fails with kind
// Exhausted if too many workers would be out of service. The error for an unknown name is of kind NotFound.
func (p *Proxy) Drain(name string, force bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, err := p.find(name)
	if err != nil {
		return err
	}
	return w.pool.drain(w, force)
}

// Undrain ends a drain. The worker is given requests once a check has found it ready.
func (p *Proxy) Undrain(name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, err := p.find(name)
	if err == nil {
		w.pool.undrain(w)
	}
	return err
}

func (p *Proxy) find(name string) (*worker, error) {
	var known []string
	for _, pool := range p.table.Load().pools {
		if w := pool.find(name); w != nil {
			return w, nil
		}
		for _, w := range pool.list() {
			known = append(known, w.Name)
		}
	}
	if len(known) > 20 {
		known = append(known[:20], "and others")
	}
	return nil, fault.New(fault.NotFound, "application worker %.80q does not exist: known are %s", name,
		strings.Join(known, ", "))
}
