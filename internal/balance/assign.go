package balance

import (
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Enter gives work to a worker, or a place in the queue. Errors: Exhausted if the queue is full, or plainly the wait would be too long, fault.CallerLimit if it is
// the caller's own work that it would wait for; Unavailable if there is no worker that could ever have it.
func (c *Core) Enter(now time.Duration, work Work) (*Ticket, error) {
	c.Wake(now)
	c.queue.subjects.arrive(work.Subject, now)
	if !work.Aside {
		c.tuner.demand.add(now)
	}
	t := &Ticket{Work: work, came: now, since: now}
	w, could := c.choose(t, now)
	if could == 0 && c.askAll(now) || w == nil && c.explore(now) {
		c.grant(now)
		w, could = c.choose(t, now)
	}
	if w != nil && !c.held(t, now) {
		c.queue.wake(t.Caller)
		c.give(t, w, could, now)
		return t, nil
	}
	switch {
	case could == 0:
		return nil, errNobody
	case work.NoWait:
		return nil, errBusy
	}
	retry := c.retryAfter()
	if limit := c.limits.Wait; limit > 0 && c.full() {
		wait, other := c.queue.expect(work.Caller, max(c.counts.capacity, 1), limit, now)
		if wait > limit {
			return nil, c.refuse(work.Caller != "" && other <= limit, retry, "no slot would become free in time; try again")
		}
	}
	if c.queue.waiting >= c.limits.Queue {
		victim, share := c.queue.greediest(work.Caller)
		if victim == nil {
			return nil, c.refuse(c.queue.crowds(work.Caller), retry, tooMany)
		}
		c.queue.leave(victim)
		victim.gone, victim.err = true, c.refuse(share, retry, tooMany)
		c.answer(victim)
	}
	c.queue.enter(t, now)
	return t, nil
}

const tooMany = "too many requests of this kind are waiting already"

var (
	errNobody = fault.Retry(fault.Unavailable, fault.RetrySoon, "nobody takes requests of this kind now; try again")
	errBusy   = fault.Retry(fault.Exhausted, fault.RetrySoon, "all who take requests of this kind are busy; try again")
)

// refuse is for work that finds no place, or waits for too long. What is its caller's own share says nothing of the number of slots.
func (c *Core) refuse(share bool, retry time.Duration, message string) error {
	if share {
		return fault.CallerLimit(retry, "%s", message)
	}
	c.crowded = crowdedBy
	return fault.Retry(fault.Exhausted, retry, "%s", message)
}

// full tells whether there is no free slot for any that waits.
func (c *Core) full() bool {
	w, ok := c.order.top()
	return !ok || !w.place.open() && (c.counts.open == 0 || c.queue.picky == 0)
}

// retryAfter guesses when a newcomer would find the queue worked off: within what is sensible to tell a client.
func (c *Core) retryAfter() time.Duration {
	d := c.queue.held * time.Duration(c.queue.waiting+1) / time.Duration(max(c.counts.slots, 1))
	return min(max(d, time.Second), time.Minute)
}

// held tells whether work has to wait though a worker has a slot: for those in reserve, or those that its subject has.
func (c *Core) held(t *Ticket, now time.Duration) bool {
	return !t.Fast && c.spared() || c.queue.subjects.bounded(t.Subject, now)
}

// spared tells whether all slots that are free are for Fast work.
func (c *Core) spared() bool {
	reserve := c.limits.Reserve
	if reserve == AutoReserve {
		reserve = min(c.counts.slots/4, 1)
	}
	return reserve > 0 && c.counts.unbound == 0 && c.counts.slow >= max(c.counts.slots-reserve, 1)
}

// choose finds the worker for a piece of work, nil if none has a free slot; and of how many it is one that could have it, now or later.
func (c *Core) choose(t *Ticket, now time.Duration) (best *Worker, could int) {
	if t.picky() {
		return c.chooseAmong(t, now)
	}
	for {
		w, ok := c.order.top()
		if !ok {
			return nil, 0
		}
		if w.ask(now) || w.expected(now) {
			c.settle(w, now)
			continue
		}
		if !w.place.open() {
			return nil, c.counts.workers
		}
		return w, c.counts.workers
	}
}

// among are the workers that can have the work.
func (c *Core) among(t *Ticket) []*Worker {
	if t.Among != nil {
		return t.Among
	}
	return c.list
}

// chooseAmong looks at each one.
func (c *Core) chooseAmong(t *Ticket, now time.Duration) (best *Worker, could int) {
	for _, w := range c.among(t) {
		if slices.Contains(t.Tried, w.member.Name) {
			continue
		}
		if w.ask(now) || w.expected(now) {
			c.settle(w, now)
		}
		if w.place == unable {
			continue
		}
		if could++; best == nil || w.before(best) {
			best = w
		}
	}
	if best != nil && !best.place.open() {
		best = nil
	}
	return best, could
}

// give has a worker run what does not wait, or no longer.
func (c *Core) give(t *Ticket, w *Worker, could int, now time.Duration) {
	switch {
	case t.arrival > 0:
		t.reason = Queued
	case could == 1:
		t.reason = Only
	case w.inFlight == 0:
		t.reason = Free
	default:
		t.reason = LeastBusy
	}
	t.shared = w.inFlight > 0 && c.passedOver(t)
	c.queue.begin(t, now)
	c.tuner.note(w, now)
	t.worker, t.since, t.spent = w, now, w.spent
	t.end = now + max(c.takes.of(t.Route), leastCharge)
	w.seats.put(t)
	w.inFlight++
	c.turn++
	w.last = c.turn
	if share := w.share(now); share < 1 { // the others have some turns before it has the next
		w.last += uint64(float64(c.counts.workers) * (1/share - 1))
	}
	c.inUse++
	if !t.Fast {
		w.slow++
	}
	c.settle(w, now)
}

// passedOver tells whether a worker is idle that could be given work.
func (c *Core) passedOver(t *Ticket) bool {
	if !t.picky() {
		return c.counts.idle > 0
	}
	return slices.ContainsFunc(c.among(t), func(w *Worker) bool { return w.counts.idle > 0 && !slices.Contains(t.Tried, w.member.Name) })
}

// Leave ends a wait or a piece of work, whatever t is at; the second time it does nothing.
func (c *Core) Leave(now time.Duration, t *Ticket, how Outcome) {
	c.Wake(now)
	if t.gone {
		return
	}
	t.gone = true
	if t.worker == nil {
		subjects := len(c.queue.subjects.all)
		c.queue.leave(t)
		if len(c.queue.subjects.all) < subjects { // another one may be alone now
			c.grant(now)
		}
		return
	}
	c.end(now, t, how)
	c.grant(now)
	if c.queue.waiting > 0 && c.explore(now) {
		c.grant(now)
	}
}

// Expire ends a wait that takes too long, and is the error for it. A slot granted meanwhile goes to the next in the queue.
func (c *Core) Expire(now time.Duration, t *Ticket, retry time.Duration) error {
	err := c.refuse(c.queue.share(t.Caller), retry, "no slot became free in time")
	c.Leave(now, t, Cut)
	return err
}

// Hand ends a piece of work, and has its worker begin another at once, before all that waits. Nil: the worker is given no more.
func (c *Core) Hand(now time.Duration, t *Ticket, how Outcome, work Work) (next *Ticket) {
	c.Wake(now)
	if t.gone || t.worker == nil {
		return nil
	}
	t.gone = true
	c.end(now, t, how)
	if w := t.worker; w.place.open() {
		next = &Ticket{Work: work, came: now, since: now}
		next.Among = []*Worker{w}
		c.queue.wake(next.Caller)
		c.give(next, w, 1, now)
	}
	c.grant(now)
	return next
}

// end takes in that work has ended at its worker.
func (c *Core) end(now time.Duration, t *Ticket, how Outcome) {
	w := t.worker
	c.queue.end(t, now)
	c.tuner.note(w, now)
	if how == OK && !t.Aside {
		c.learn(t, now)
	}
	w.seats.remove(t)
	w.inFlight--
	c.inUse--
	if !t.Fast {
		w.slow--
	}
	if how == Failed {
		w.rests = now + restAfterFailure
	}
	c.settle(w, now)
}

// learn takes in how long work took.
func (c *Core) learn(t *Ticket, now time.Duration) {
	w := t.worker
	if w.member.Auto {
		c.crowded = max(c.crowded-1, 0)
		worth, _ := c.takes.worth(t.Route) // 0: not known
		changed := c.tuner.learn(t, float64(worth)/float64(max(c.takes.all.slow, 1)), c.pressure(), c.counts.workers)
		if w.trial != 0 && w.trialLeft <= 0 {
			changed = c.tuner.end(w, c.counts.workers) || changed
		}
		c.level(changed, now)
	}
	c.takes.add(t.Route, now-t.since)
}

// pressure tells how much waits.
func (c *Core) pressure() pressure {
	switch {
	case c.crowded > 0:
		return pressureFull
	case c.queue.waiting > pressing*c.counts.workers*steps[c.tuner.most]:
		return pressureHigh
	case c.queue.waiting > c.inUse:
		return pressureSome
	}
	return pressureLow
}

// level has all workers go by what the tuner has found, if that is new.
func (c *Core) level(changed bool, now time.Duration) {
	if changed {
		for _, w := range c.list {
			c.settle(w, now)
		}
	}
}

// explore lets a worker use more or fewer slots than the others for some time, if all are taken.
func (c *Core) explore(now time.Duration) (more bool) {
	w, ok := c.order.top()
	if !ok || w.place.open() && !c.spared() {
		return false
	}
	trial := c.tuner.next(c.counts.workers)
	if trial == 0 {
		return false
	}
	if !w.canTry() { // one that is spared, or is trying
		i := slices.IndexFunc(c.list, (*Worker).canTry)
		if i < 0 {
			return false
		}
		w = c.list[i]
	}
	c.tuner.begin(w, trial, now, max(c.takes.all.mean, leastCharge))
	c.settle(w, now)
	return trial > 0
}

// grant gives free slots to those who wait.
func (c *Core) grant(now time.Duration) {
	for c.queue.waiting > 0 && !c.full() {
		full, waiting := c.queue.subjects.full(now)
		if c.queue.waiting <= waiting {
			return
		}
		t := c.queue.next(!c.spared(), func(t *Ticket) bool {
			if len(full) > 0 && slices.Contains(full, t.Subject) {
				return false
			}
			w, _ := c.choose(t, now)
			return w != nil
		})
		if t == nil {
			return
		}
		w, could := c.choose(t, now)
		c.queue.unqueue(t)
		c.give(t, w, could, now)
		c.answer(t)
	}
}
