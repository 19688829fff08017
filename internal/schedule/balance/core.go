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

// NewCore returns a Core without workers. It calls answer when a waiting ticket is assigned or refused. The function
// must not call the Core.
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

// Set replaces the workers and returns them in the same order. Names must be unique. A worker with the name of a
// previous one keeps its counts and its drain mark. A removed worker finishes its work and is given no more. If members
// is empty, all waiting work is refused.
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

// Wake assigns waiting work to free slots. Call it at the time that Next returns, and when the result of a worker's
// Ready or Usable has changed.
func (c *Core) Wake(now time.Duration) {
	for t := c.next(now); t != nil; t = c.next(now) {
		w, candidates := c.choose(t, now)
		c.queue.remove(t)
		c.assign(t, w, candidates, now)
		c.answer(t)
	}
}

// Next returns the time at which waiting work can be assigned without any other event, and whether there is such a
// time.
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

// evict refuses a waiting ticket.
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

// refusal returns the error for work that does not fit into the queue or waits too long. isShare reports whether other
// work of the same caller is the cause.
func refusal(isShare bool, retry time.Duration, message string) error {
	if isShare {
		return fault.CallerLimit(retry, "%s", message)
	}
	return fault.Retry(fault.Exhausted, retry, "%s", message)
}

// refuseLongWait returns an error for work whose expected wait exceeds the limit.
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
	slots     int // without those that Narrow excludes
	all       int
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

// retryAfter estimates the time until the queue is empty. The result is between a second and a minute.
func (c *Core) retryAfter(now time.Duration) time.Duration {
	d := c.queue.held * time.Duration(len(c.queue.waiting)+1) / time.Duration(max(c.capacity(now).slots, 1))
	return min(max(d, time.Second), time.Minute)
}

// slotsOfSubject returns the maximum number of slots for one subject. It is smaller than the number of slots. 0 means
// no maximum.
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

// choose returns the best worker for a ticket, or nil if no suitable worker has a free slot. candidates is the number
// of workers that can be given the ticket now or later.
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
		if candidates++; r < lowest || r == lowest && !t.Ordered && w.isBetter(best) {
			best, lowest = w, r
		}
	}
	if !lowest.isOpen() {
		best = nil
	}
	return best, candidates
}

// next returns the next waiting ticket that has a free slot, or nil.
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

// assign gives a ticket to a worker. The ticket must not be in the queue.
func (c *Core) assign(t *Ticket, w *Worker, candidates int, now time.Duration) {
	switch {
	case t.arrival > 0:
		t.reason = Queued
	case candidates == 1:
		t.reason = Only
	case t.Ordered:
		t.reason = InOrder
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
