package app

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/balance"
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
			p.say(w, slog.LevelWarn, "an application worker is not ready: it is given no more requests", "why", w.why)
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

// heard takes in what came of a check. doubt: the worker is given requests, and may be down.
func (p *pool) heard(w *worker, r report, why string, h *Health) (doubt bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sum(w)
	was := w.standing
	if w.heard(r, why, h, p.now()) {
		w.changed = p.now()
		p.metrics.turned(w)
		switch {
		case w.standing == down:
			p.say(w, slog.LevelWarn, "an application worker is down", "why", w.why)
		case w.standing == up && was != starting:
			p.say(w, slog.LevelInfo, "an application worker is ready again")
		}
		p.settle()
	}
	return w.deaths > 0 && w.serves()
}

// maxSaid is how many lines the log has of a worker in a minute: one whose checks go this way and that would fill it.
const maxSaid = 6

// say logs what has become of a worker. Callers hold mu.
func (p *pool) say(w *worker, level slog.Level, message string, attrs ...any) {
	if now := p.now(); now.Sub(w.minute) >= time.Minute {
		w.minute, w.said = now, 0
	}
	if w.said >= maxSaid {
		w.unsaid++
		return
	}
	w.said++
	p.log.Log(context.Background(), level, message, append([]any{"worker", w.Name, "pool", p.name}, attrs...)...)
}

// sum logs, once the minute is over, what say did not. Callers hold mu.
func (p *pool) sum(w *worker) {
	if n := w.unsaid; n > 0 && p.now().Sub(w.minute) >= time.Minute {
		w.unsaid = 0
		p.say(w, slog.LevelWarn, "an application worker goes up and down", "more_changes", n, "now", w.standing.String(), "why", w.why)
	}
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

// mayGo tells whether a drained worker has nothing left, under whatever name, for so long that it may go. Callers hold mu.
func (p *pool) mayGo(w *worker) bool {
	if !w.drained || w.conns.requests.Load() > 0 {
		return false
	}
	now, ended := p.now(), time.Unix(0, w.conns.ended.Load())
	return now.Sub(w.idle) >= p.blackout && now.Sub(ended) >= p.blackout
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
		p.look(ctx, w, quick)
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

// look checks a worker. As long as it is not known whether one that is given requests is down, the check keeps its place at it.
func (p *Proxy) look(ctx context.Context, w *worker, pause time.Duration) {
	if s := w.pool.checkSeat(ctx, w); s != nil {
		defer s.Done(balance.OK)
	}
	if w.conns.full() { // with what it was given before: that it has no time says nothing
		return
	}
	for ctx.Err() == nil {
		r, why := p.Health.probe(ctx, w.conns)
		if ctx.Err() != nil || r == unknown || !w.pool.heard(w, r, why, &p.Health) {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
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
	s := State{Name: w.Name, Pool: p.name, Address: w.Address, State: "up", Why: w.why, Since: w.changed, Given: w.serves(), InFlight: int(w.conns.requests.Load()),
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
	p.setting.Lock()
	defer p.setting.Unlock()
	w, err := p.find(name)
	if err != nil {
		return err
	}
	return w.pool.drain(w, force)
}

// Undrain ends what Drain began: the worker is given requests once it is found to be ready.
func (p *Proxy) Undrain(name string) error {
	p.setting.Lock()
	defer p.setting.Unlock()
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
