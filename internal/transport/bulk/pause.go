package bulk

import (
	"sync/atomic"
	"time"
)

// While there are small requests, the pump pauses for them: no copy by the kernel begins until the request for which
// the pause began is answered. To answer a request, threads of several processes wake up, one after the other. Without
// a pause, each of them waits for other threads and for a copy on its CPU to use up its time slice (4 ms at 250 Hz).
// Without bulk data the CPUs are soon idle. docs/decisions/0002 has the figures.
//
// Many or long small requests must not stop a clone. So a pause lasts at most pauseMost. All pauses together last at
// most a quarter (1/pauseShare) of the time between them, which is a fifth of all time.
const (
	pauseMost  = 3 * time.Millisecond
	pauseLeast = pauseMost / 6 // a shorter pause is not worth it
	pauseShare = 4

	// Requests that arrive within this time share a pause. A second pause would be short, and would use up the credit for
	// the next request.
	together = 10 * time.Millisecond
)

// pause is the state of the pump's pauses.
type pause struct {
	smalls atomic.Int64 // requests that are being answered, and may be small
	// until is the end of the current pause in ns since the pump's epoch; 0: no pause. Changed with the pump's lock held.
	until atomic.Int64

	// The pump's lock guards the other fields. before is the number of requests that were being answered when the pause
	// began. They may take long, such as a session whose client computes.
	before int64
	came   time.Duration // arrival of the latest request
	credit time.Duration // maximum length of the next pause, as of asOf
	asOf   time.Duration
	timer  *time.Timer // starts the waiters at the end of the pause; nil: not needed so far
}

// Began records the arrival of a request that may be small. The caller calls Ended for each.
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
		p.pause.before, p.pause.credit = before, 0
		p.pause.until.Store(int64(now + credit))
	}
}

// Ended records that a request is answered, or is not small.
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

// isPaused reports whether no turn may begin now, and ends a pause whose time has passed. The caller holds the lock.
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

// endPause ends the pause as of a time. The caller holds the lock.
func (p *Pump) endPause(at time.Duration) {
	p.pause.asOf = at
	p.pause.until.Store(0)
}

// awaitPause starts a timer that starts the waiters at the end of the pause, because no turn may end at that time. It
// does nothing without a pause. The caller holds the lock.
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
