package balance

import (
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Core decides which worker is given which work, and when. It has no lock, reads no clock and never blocks. Times are
// measured from any fixed moment and never decrease. Use Scheduler for goroutines; simulations drive a Core directly.
type Core struct {
	limits Limits
	answer func(*Ticket)

	members map[string]*Worker
	list    []*Worker // the members in the order of Set
	turn    uint64    // counts assignments
	inUse   int
	queue   queue
}

// NewCore returns a Core without workers. It calls answer for each ticket that had to wait, once the ticket is assigned
// or refused. The function must not call the Core.
func NewCore(l Limits, answer func(*Ticket)) *Core {
	c := &Core{answer: answer, members: map[string]*Worker{}, queue: newQueue()}
	c.Limit(0, l)
	return c
}

// Limit replaces the limits. A shorter queue evicts no work, and a new wait limit applies to later work.
func (c *Core) Limit(now time.Duration, l Limits) {
	l.Queue, l.Each = max(l.Queue, 0), max(l.Each, 0)
	if l.Anonymous <= 0 || l.Anonymous >= 1 {
		l.Anonymous = 0.5
	}
	c.limits = l
	c.queue.pools[known].weight, c.queue.pools[anonymous].weight = 1-l.Anonymous, l.Anonymous
	c.Wake(now)
}

// Set replaces the workers and returns them in the same order. Names must differ. A worker that stays, by its name,
// keeps its counts and its drain mark. A worker that is left out finishes its work and is given no more. Without any
// worker, all work that waits is refused.
func (c *Core) Set(now time.Duration, members []Member) []*Worker {
	before := c.members
	c.members, c.list = make(map[string]*Worker, len(members)), make([]*Worker, len(members))
	for i, m := range members {
		m.Weight, m.Slots = min(max(m.Weight, 1), maxWeight), min(max(m.Slots, 0), maxSlots)
		w := before[m.Name]
		if w == nil {
			w = &Worker{}
		}
		w.member = m
		c.members[m.Name], c.list[i] = w, w
	}
	for name, w := range before {
		w.isRemoved = c.members[name] != w
	}
	if len(members) == 0 {
		for _, t := range slices.Concat(c.queue.checks, c.queue.waiting) {
			c.evict(t, errUnavailable)
		}
	}
	c.Wake(now)
	return slices.Clone(c.list)
}

// Wake assigns work that waits, as far as there are free slots. Call it at the time of Next, and when a worker's Ready
// or Usable has changed.
func (c *Core) Wake(now time.Duration) {
	for t := c.next(now); t != nil; t = c.next(now) {
		w, candidates := c.choose(t, now)
		c.queue.remove(t)
		c.assign(t, w, candidates, now)
		c.answer(t)
	}
}

// Next returns when time alone can let waiting work go on, and whether it can.
func (c *Core) Next(now time.Duration) (at time.Duration, ok bool) {
	if len(c.queue.waiting) == 0 {
		return 0, false
	}
	return c.queue.subjects.boundEnds(c.slotsOfSubject(now), now)
}

// Drain starts or ends the drain of a worker: it is given no work while it drains, and finishes what it has. The error
// for an unknown name is of kind NotFound and lists the known names.
func (c *Core) Drain(now time.Duration, name string, draining bool) error {
	w := c.members[name]
	if w == nil {
		return errUnknown(name, c.members)
	}
	w.isDraining = draining
	c.Wake(now)
	return nil
}

// Narrow restricts a worker to n of its slots, at least one. With n of all slots or more, the restriction ends. Work in
// flight stays.
func (c *Core) Narrow(now time.Duration, w *Worker, n int) {
	if w.narrowed = max(n, 1); n >= w.member.Slots {
		w.narrowed = 0
	}
	c.Wake(now)
}

// State describes a worker.
func (c *Core) State(w *Worker) State {
	return State{Name: w.member.Name, Weight: w.member.Weight, InFlight: w.inFlight, Slots: w.member.Slots,
		Used:     w.slots(),
		Draining: w.isDraining, Down: w.down()}
}

// Enter assigns work, or queues it. The errors are those of Scheduler.Acquire.
func (c *Core) Enter(now time.Duration, work Work) (*Ticket, error) {
	c.queue.subjects.note(work.Subject, now)
	t := &Ticket{Work: work, came: now, since: now}
	w, candidates := c.choose(t, now)
	if w != nil && !c.queue.subjects.isBounded(t.Subject, c.slotsOfSubject(now), now) {
		c.queue.open(t)
		c.assign(t, w, candidates, now)
		return t, nil
	}
	switch {
	case candidates == 0:
		return nil, errUnavailable
	case work.NoWait:
		return nil, errBusy
	case work.Check:
		c.queue.checks = append(c.queue.checks, t)
		return t, nil
	}
	retry := c.retryAfter(now)
	if err := c.refuseLongWait(t, w == nil, retry, now); err != nil {
		return nil, err
	}
	if len(c.queue.waiting) >= c.limits.Queue {
		victim, isShare := c.queue.greediest(work.Caller)
		if victim == nil {
			return nil, refusal(c.queue.hasWaiting(work.Caller, 2), retry, tooMany)
		}
		c.evict(victim, refusal(isShare, retry, tooMany))
	}
	c.queue.enter(t, now)
	return t, nil
}

// evict refuses a ticket that waits.
func (c *Core) evict(t *Ticket, err error) {
	c.queue.remove(t)
	c.queue.close(t)
	t.gone, t.err = true, err
	c.answer(t)
}

const tooMany = "too many requests of this kind are waiting already"

var (
	errUnavailable = fault.Retry(fault.Unavailable, fault.RetrySoon, "no backend is available; try again")
	errBusy        = fault.Retry(fault.Exhausted, fault.RetrySoon, "all backends are busy; try again")
)

// refusal is the error for work that finds no place or waits too long. isShare says that the caller's own work is in
// its way.
func refusal(isShare bool, retry time.Duration, message string) error {
	if isShare {
		return fault.CallerLimit(retry, "%s", message)
	}
	return fault.Retry(fault.Exhausted, retry, "%s", message)
}

// refuseLongWait returns an error for work that would plainly wait longer than it may.
func (c *Core) refuseLongWait(t *Ticket, isFull bool, retry, now time.Duration) error {
	limit := c.limits.Wait
	if limit <= 0 || !isFull {
		return nil
	}
	wait, other := c.queue.expectWait(t.Caller, max(c.capacity(now).all, 1), limit, now)
	if wait <= limit {
		return nil
	}
	return refusal(t.Caller != "" && other <= limit, retry, "no slot would become free in time; try again")
}

// capacity counts the slots of the workers that can be given work now or later.
type capacity struct {
	slots     int // in use
	all       int // in use or not
	unlimited bool
}

func (c *Core) capacity(now time.Duration) (n capacity) {
	for _, w := range c.list {
		if w.rank(now) == unavailable {
			continue
		}
		n.slots, n.all = n.slots+w.slots(), n.all+w.member.Slots
		n.unlimited = n.unlimited || w.member.Slots == 0
	}
	return n
}

// retryAfter estimates when the queue will be empty, within what is sensible to tell a client.
func (c *Core) retryAfter(now time.Duration) time.Duration {
	d := c.queue.held * time.Duration(len(c.queue.waiting)+1) / time.Duration(max(c.capacity(now).slots, 1))
	return min(max(d, time.Second), time.Minute)
}

// slotsOfSubject returns how many slots one subject may have, fewer than there are; 0: all.
func (c *Core) slotsOfSubject(now time.Duration) int {
	if c.limits.Each == 0 {
		return 0
	}
	n := c.capacity(now)
	if n.unlimited {
		return c.limits.Each
	}
	return min(c.limits.Each, max(n.slots-1, 0))
}

// choose returns the worker for a piece of work, nil if all slots are taken, and how many workers could be given it
// now or later.
func (c *Core) choose(t *Ticket, now time.Duration) (best *Worker, candidates int) {
	among := c.list
	if t.Among != nil {
		among = t.Among
	}
	lowest := unavailable
	for _, w := range among {
		r := w.rank(now)
		if r == unavailable || slices.Contains(t.Tried, w.member.Name) {
			continue
		}
		if candidates++; r < lowest || r == lowest && w.isBetter(best) {
			best, lowest = w, r
		}
	}
	if !lowest.isOpen() {
		best = nil
	}
	return best, candidates
}

// next returns the waiting ticket that a free slot goes to; nil if there is none.
func (c *Core) next(now time.Duration) *Ticket {
	for _, t := range c.queue.checks {
		if w, _ := c.choose(t, now); w != nil {
			return t
		}
	}
	if len(c.queue.waiting) == 0 {
		return nil
	}
	anyone, _ := c.choose(&Ticket{}, now)
	each := c.slotsOfSubject(now)
	return c.queue.next(func(t *Ticket) bool {
		if c.queue.subjects.isBounded(t.Subject, each, now) {
			return false
		}
		w := anyone
		if t.isRestricted() {
			w, _ = c.choose(t, now)
		}
		return w != nil
	})
}

// assign gives a worker a ticket that does not wait.
func (c *Core) assign(t *Ticket, w *Worker, candidates int, now time.Duration) {
	switch {
	case t.arrival > 0:
		t.reason = Queued
	case candidates == 1:
		t.reason = Only
	case w.inFlight == 0:
		t.reason = Free
	default:
		t.reason = LeastBusy
	}
	t.worker, t.since = w, now
	c.queue.charge(t, now)
	c.turn++
	w.last = c.turn
	w.inFlight++
	c.inUse++
}

// Leave ends a wait or a piece of work. Further calls do nothing.
func (c *Core) Leave(now time.Duration, t *Ticket, how Outcome) {
	if t.gone {
		return
	}
	t.gone = true
	if w := t.worker; w == nil {
		c.queue.remove(t)
	} else {
		c.queue.settle(t, now)
		w.inFlight--
		c.inUse--
		if how == Failed {
			w.restsUntil = now + restAfterFailure
		}
	}
	c.queue.close(t)
	c.Wake(now)
}

// Expire ends a wait that took too long and returns the error for it.
func (c *Core) Expire(now time.Duration, t *Ticket, retry time.Duration) error {
	err := refusal(c.queue.isBehindItself(t.Caller), retry, "no slot became free in time")
	c.Leave(now, t, Cut)
	return err
}
