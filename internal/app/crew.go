package app

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// allowed is how many of the pool's workers may be out of service at once.
func (p *pool) allowed() int { return max(1, int(p.drainShare*float64(len(p.workers))+1e-9)) }

// serves tells whether a worker is given requests. Callers hold the pool's mu.
func (w *worker) serves() bool {
	return !w.drained && !w.rests && (w.standing == up || w.standing == unready)
}

// others names the workers that are out of service, but one. Callers hold mu.
func (p *pool) others(but *worker) (out []string) {
	for _, w := range p.workers {
		if w != but && !w.serves() {
			out = append(out, w.Name)
		}
	}
	return out
}

// settle draws from how the workers are who is given requests: as many of those that are not ready rest as may be out of service at once, the
// first to say so first; the others go on, rather than leave their requests to too few. Callers hold mu.
func (p *pool) settle() {
	var unsettled []*worker
	for _, w := range p.workers {
		if w.standing != unready {
			w.rests = false
		} else if !w.rests && !w.drained {
			unsettled = append(unsettled, w)
		}
	}
	slices.SortStableFunc(unsettled, func(a, b *worker) int { return a.changed.Compare(b.changed) })
	for _, w := range unsettled {
		if len(p.others(w)) < p.allowed() {
			w.rests = true
			p.metrics.drained(w, byReadiness)
			p.log.Warn("an application worker is not ready: it is given no more requests", "worker", w.Name, "pool", p.name, "why", w.why)
		}
	}
	could := false
	for _, w := range p.workers {
		answers := !w.drained && w.standing != down
		w.given.Store(w.serves())
		w.answers.Store(answers)
		could = could || answers
	}
	p.could.Store(could)
	p.scheduler.Changed()
}

// heard takes in what came of a check.
func (p *pool) heard(w *worker, r report, why string, h *Health) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := w.standing
	if !w.heard(r, why, h, p.now()) {
		return
	}
	w.changed = p.now()
	p.metrics.turned(w)
	switch {
	case w.standing == down:
		p.log.Warn("an application worker is down", "worker", w.Name, "pool", p.name, "why", w.why)
	case w.standing == up && was != starting:
		p.log.Info("an application worker is ready again", "worker", w.Name, "pool", p.name)
	}
	p.settle()
}

// drain keeps new requests from a worker. It fails, as Exhausted, where too many were out of service then, unless it is forced.
func (p *pool) drain(w *worker, force bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.drained {
		return nil
	}
	if out := p.others(w); len(out) >= p.allowed() && w.serves() && !force {
		return fault.New(fault.Exhausted, "%s keeps its requests for now: of the %d workers of the pool %q no more than %d may be out of service at once "+
			"(app.drain_share), and %s %s; try again when one is back (--wait does), or use --force", w.Name, len(p.workers), p.name, p.allowed(),
			strings.Join(out[:min(len(out), 8)], ", "), plural(len(out), "is", "are"))
	}
	w.drained, w.changed = true, p.now()
	w.idle = w.changed
	p.metrics.drained(w, byOperator)
	p.settle()
	return nil
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// undrain ends what drain began. Nothing is known of the worker then: it may be another process by now.
func (p *pool) undrain(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !w.drained {
		return
	}
	w.drained = false
	w.begin(p.checked, p.now())
	p.settle()
	w.check()
}

// begin forgets what was known of a worker. Without checks it is up.
func (w *worker) begin(checked bool, now time.Time) {
	w.vitals, w.changed = vitals{why: "not asked yet"}, now
	if !checked {
		w.vitals = vitals{standing: up}
	}
}

// check has a worker asked soon.
func (w *worker) check() {
	select {
	case w.due <- struct{}{}:
	default:
	}
}

// gone tells whether a drained worker has nothing left, for so long that it may go. Callers hold mu.
func (p *pool) mayGo(w *worker) bool {
	return w.drained && w.running.Load() == 0 && p.now().Sub(w.idle) >= p.blackout
}

// watch asks a worker, again and again, until ctx ends.
func (p *Proxy) watch(ctx context.Context, w *worker) {
	h := &p.Health
	quick := max(h.Interval/4, time.Millisecond)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-w.due:
		}
		if r, why, known := p.ask(ctx, w); known && ctx.Err() == nil {
			w.pool.heard(w, r, why, h)
		}
		w.pool.mu.Lock()
		wait := h.Interval
		if w.soon() {
			wait = quick
		}
		w.pool.mu.Unlock()
		timer.Reset(wait - wait/8 + rand.N(wait/4+1))
		select { // failures of requests ask for checks: not one for each
		case <-ctx.Done():
			return
		case <-time.After(min(quick, wait)):
		}
	}
}

// ask checks a worker; known: there is a result. One that is given requests is asked in a seat of its own, so that the check takes no thread
// from a request: without one it is busy, and what it does for its requests tells how it is.
func (p *Proxy) ask(ctx context.Context, w *worker) (r report, why string, known bool) {
	if w.given.Load() {
		s, err := w.pool.checkSeat(ctx, w, cmp.Or(p.Health.Timeout, 5*second))
		if err != nil {
			return 0, "", false
		}
		defer s()
	}
	r, why = p.Health.probe(ctx, w.conns)
	return r, why, true
}

// State is how a worker is.
type State struct {
	Name, Pool, Address string
	State               string // up, starting, "not ready", down, draining, drained
	Why                 string // it is not up
	Since               time.Time
	Given               bool // it is given requests
	InFlight            int
	Slots               int // that it is given now
	MaxSlots            int
	Served, Failed      uint64
}

// Workers tells how all workers are, by pool, in the order of the configuration.
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
	s := State{Name: w.Name, Pool: p.name, Address: w.Address, State: "up", Why: w.why, Since: w.changed, Given: w.serves(), InFlight: int(w.running.Load()),
		MaxSlots: w.Slots, Served: w.served.Load(), Failed: w.failed.Load()}
	if w.member != nil {
		s.Slots = p.scheduler.State(w.member).Used
	}
	switch {
	case p.mayGo(w):
		s.State = "drained"
	case w.drained:
		s.State = "draining"
	case w.standing == starting:
		s.State = "starting"
	case w.standing == down:
		s.State = "down"
	case w.standing == unready:
		s.State = "not ready"
	}
	return s
}

// Drain keeps new requests from a worker; what it has goes on. Where too many would be out of service then it fails, as Exhausted, unless it is
// forced. NotFound: there is no such worker.
func (p *Proxy) Drain(name string, force bool) error {
	w, err := p.find(name)
	if err != nil {
		return err
	}
	return w.pool.drain(w, force)
}

// Undrain ends what Drain began: the worker is given requests once it is found to be ready.
func (p *Proxy) Undrain(name string) error {
	w, err := p.find(name)
	if err == nil {
		w.pool.undrain(w)
	}
	return err
}

func (p *Proxy) find(name string) (*worker, error) {
	var known []string
	for _, pool := range p.table.Load().pools {
		for _, w := range pool.list() {
			if w.Name == name {
				return w, nil
			}
			known = append(known, w.Name)
		}
	}
	if len(known) > 20 {
		known = append(known[:20], "and others")
	}
	return nil, fault.New(fault.NotFound, "there is no application worker %.80q; there are %s", name, strings.Join(known, ", "))
}
