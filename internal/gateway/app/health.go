package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// Health configures the health checks. Without an interval there are none, and all workers are up. Failures and Passes
// are at least 1.
type Health struct {
	Path     string        // requested from the worker; empty: a connection is enough
	Interval time.Duration // between two checks
	Timeout  time.Duration // of one check; default 5s
	Failures int           // consecutive checks without a response until a worker is down
	Passes   int           // consecutive good checks until a worker is up again
}

// result is the result of a check.
type result int

const (
	passed       result = iota
	refused             // the worker responded that it is not ready
	unanswered          // no response
	inconclusive        // the check could not be made, and not because of the worker
)

// health is the result of a worker's checks.
type health int

const (
	starting health = iota // nothing is known yet
	up
	unready // it responds, and says that it is not ready
	down
)

func (h health) String() string { return [...]string{"starting", "up", "not ready", "down"}[h] }

// vitals derive the health of a worker from its checks.
type vitals struct {
	health
	why            string // reason for not being up
	passes, deaths int    // consecutive checks
}

// record adds the result of a check and reports whether the health changed.
func (v *vitals) record(r result, why string, h *Health) bool {
	before := v.health
	if r == passed {
		v.deaths = 0
		if v.passes++; before == up || before != starting && v.passes < max(h.Passes, 1) {
			return false
		}
		*v = vitals{health: up}
		return true
	}
	v.passes = 0
	next := unready
	if r == refused {
		v.deaths = 0
	} else if v.deaths++; v.deaths >= max(h.Failures, 1) || before == starting || before == down {
		next = down
	} else {
		return false
	}
	v.health, v.why = next, why
	return v.health != before
}

// isUrgent reports whether the next check may change the health, and should come soon.
func (v *vitals) isUrgent() bool {
	return v.health == starting || v.health != up && v.passes > 0 || v.health != down && v.deaths > 0
}

// probe checks a worker once.
func (h *Health) probe(ctx context.Context, w *worker) (result, string) {
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	if h.Path == "" {
		c, err := w.transport.DialContext(ctx, "", "")
		if err != nil {
			return failedProbe(err, "cannot connect")
		}
		c.Close()
		return passed, ""
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.host+h.Path, nil)
	if err != nil {
		return unanswered, err.Error()
	}
	request.Header = http.Header{"User-Agent": {"packhorse-health"}, "Accept": {"*/*"}}
	response, err := w.transport.RoundTrip(request)
	if err != nil {
		return failedProbe(err, "no response to GET "+h.Path)
	}
	const enough = 64 << 10 // of the body, for the next request on the connection
	_, _ = io.CopyN(io.Discard, response.Body, enough)
	response.Body.Close()
	if response.StatusCode/100 == 2 {
		return passed, ""
	}
	return refused, fmt.Sprintf("GET %s: %.80q", h.Path, response.Status)
}

func failedProbe(err error, what string) (result, string) {
	if isExhausted(err) {
		return inconclusive, ""
	}
	text := err.Error()
	op, isOp := errors.AsType[*net.OpError](err)
	switch {
	case isTimeout(err):
		text = "timeout"
	case isOp && op.Err != nil: // without the address
		text = strings.TrimPrefix(op.Err.Error(), "connect: ")
	}
	return unanswered, what + ": " + text
}

// watch checks a worker again and again until ctx ends.
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
		p.check(ctx, w, quick)
		p.mu.Lock()
		wait := h.Interval
		if w.isUrgent() {
			wait = quick
		}
		p.mu.Unlock()
		timer.Reset(wait - wait/8 + rand.N(wait/4+1))
		select { // failed requests ask for checks; this bounds them
		case <-ctx.Done():
			return
		case <-time.After(min(quick, wait)):
		}
	}
}

// check checks a worker with a separate slot, so that the check takes no thread from a request. It keeps the slot
// while the worker does not respond, so that no request fails meanwhile.
func (p *Proxy) check(ctx context.Context, w *worker, pause time.Duration) {
	if s := p.checkSlot(ctx, w); s != nil {
		defer s.Done(balance.OK)
	} else if p.isFull(w) { // it has no thread for a check
		return
	}
	for ctx.Err() == nil {
		r, why := p.Health.probe(ctx, w)
		if ctx.Err() != nil || r == inconclusive || !p.record(w, r, why) {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// checkSlot waits for the next free slot of a worker. Nil means that the worker is given no requests, or that ctx has
// ended.
func (p *Proxy) checkSlot(ctx context.Context, w *worker) *balance.Seat {
	for w.isGiven.Load() && ctx.Err() == nil {
		p.mu.Lock()
		scheduler, work := w.pool.scheduler, balance.Work{Check: true, Among: []*balance.Worker{w.member}}
		p.mu.Unlock()
		again, cancel := context.WithTimeout(ctx, time.Second) // it may be drained meanwhile
		s, err := scheduler.Acquire(again, work)
		cancel()
		if err == nil {
			return s
		}
		if again.Err() == nil { // it is not given requests any more
			return nil
		}
	}
	return nil
}

func (p *Proxy) isFull(w *worker) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return w.requests.Load() >= int64(w.slots)
}

// requestCheck makes a check due.
func (w *worker) requestCheck() {
	select {
	case w.due <- struct{}{}:
	default:
	}
}
