package bulk

import (
	"sync/atomic"
	"time"
)

// While there are small requests, the pump pauses for them: no copy by the kernel begins until the request for which
// the pause began is answered. A request's threads wake up in several processes, one after the other. Each would wait
// until a copy on its CPU has used up its slice (4 ms at 250 Hz), and for other threads. Without bulk data the CPUs are
// soon idle: docs/decisions/0002 has the figures.
//
// The pauses must not stop a clone when there are many small requests, or a long one. A pause lasts pauseMost at most,
// and all pauses together a quarter (1/pauseShare) of the time between them, which is a fifth of all time.
const (
	pauseMost  = 3 * time.Millisecond
	pauseLeast = pauseMost / 6 // a shorter one is not worth it
	pauseShare = 4

	// Requests that come within this time share a pause. A second one beside the first would be short, and spend what
	// the next request needs.
	together = 10 * time.Millisecond
)

// pause is when the pump stands still.
type pause struct {
	smalls atomic.Int64 // requests that are being answered, and may be small
	// ns since the pump's epoch; 0: the pump does not stand still. Changed with the pump's lock held.
	until atomic.Int64

	// Below the pump's lock. requests that were being answered when it began: they may last, such as a session whose
	// client thinks
	before int64
	came   time.Duration // when the latest request did
	held   time.Duration // when the first waiter began to wait
	credit time.Duration // how long the next one may be,
	asOf   time.Duration // at this time
	timer  *time.Timer   // ends the pause for the waiters; nil: there was none
}

// Began says that a request has come that may be a small one. Ended is called for each.
func (p *Pump) Began() {
	before := p.pause.smalls.Add(1) - 1
	if !p.small() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	shared := before > 0 && now-p.pause.came < together
	p.pause.came = now
	if p.isPaused(now) || shared {
		return
	}
	credit := min(p.pause.credit+(now-p.pause.asOf)/pauseShare, pauseMost)
	if p.pause.credit, p.pause.asOf = credit, now; credit >= pauseLeast {
		p.pause.before, p.pause.held, p.pause.credit = before, now, 0
		p.pause.until.Store(int64(now + credit))
	}
}

// Ended says that a request is answered, or is not small.
func (p *Pump) Ended() {
	if p.pause.smalls.Add(-1); p.pause.until.Load() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if p.isPaused(now) && p.pause.smalls.Load() <= p.pause.before {
		p.pause.credit = time.Duration(p.pause.until.Load()) - now
		p.endPause(now)
		p.begin()
	}
}

// isPaused reports whether no turn may begin now, and ends a pause whose time has passed. The lock is held.
func (p *Pump) isPaused(now time.Duration) bool {
	until := time.Duration(p.pause.until.Load())
	if until == 0 {
		return false
	}
	if now < until {
		return true
	}
	p.endPause(until)
	return false
}

// endPause ends it as of a time. The lock is held.
func (p *Pump) endPause(at time.Duration) {
	if p.waiting.head != nil {
		// a waiter that came later, because of the width, waited for another reason
		p.metrics.paused.Add(max(at-p.pause.held, 0).Seconds())
	}
	p.pause.asOf = at
	p.pause.until.Store(0)
}

// hold notes the first waiter. The lock is held.
func (p *Pump) hold() {
	if p.pause.until.Load() != 0 && p.waiting.head == nil {
		p.pause.held = p.now()
	}
}

// awaitPause starts a timer that wakes the waiters at the end of the pause, if there is one: running turns may take
// longer. The lock is held.
func (p *Pump) awaitPause() {
	until := time.Duration(p.pause.until.Load())
	if until == 0 || p.waiting.head == nil {
		return
	}
	left := until - p.now()
	if p.pause.timer == nil {
		p.pause.timer = time.AfterFunc(left, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.begin()
		})
		return
	}
	p.pause.timer.Reset(left)
}
