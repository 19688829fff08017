package balance

import (
	"slices"
	"time"
)

// Core is the scheduler itself: no lock, no clock, nothing that waits. Times are since any one moment, and never go back. Scheduler makes it safe for
// concurrent use; a simulation drives it by hand.
type Core struct {
	limits Limits
	// answer is called for each ticket that had to wait, once it has a worker or was refused. It calls nothing of the Core.
	answer func(*Ticket)

	members map[string]*Worker
	list    []*Worker     // the members as they were named
	named   uint64        // how many there ever were
	order   heap[*Worker] // those who work may be given to, the one that is next on top
	timed   heap[*Worker] // by when time alone changes something
	turn    uint64        // counts assignments: tells who was last given work, where a clock could say "at the same time"
	counts  counts        // of all members
	inUse   int
	queue   queue
	crowded int // pieces of work that are to end before a refusal no longer counts as pressure
	takes   estimates
	tuner   tuner
}

// counts are sums over workers.
type counts struct {
	workers  int // that can be given work now or later
	open     int // now
	idle     int // that are able and have nothing in flight
	unbound  int // without a bound
	slots    int // used, of the bounded
	capacity int // as slots, if none is narrowed
	slow     int // that is not Fast, in flight
}

func (c *counts) add(d counts, sign int) {
	c.workers += sign * d.workers
	c.open += sign * d.open
	c.idle += sign * d.idle
	c.unbound += sign * d.unbound
	c.slots += sign * d.slots
	c.capacity += sign * d.capacity
	c.slow += sign * d.slow
}

// NewCore makes one without workers. Answer is called for each ticket that had to wait, once it has a worker or was refused, out of the call that is the
// cause; it does not call the Core.
func NewCore(l Limits, answer func(*Ticket)) *Core {
	c := &Core{answer: answer, members: map[string]*Worker{}, queue: newQueue(), tuner: newTuner()}
	c.order = heap[*Worker]{before: (*Worker).before, place: func(w *Worker) *int { return &w.inOrder }}
	c.timed = heap[*Worker]{before: func(a, b *Worker) bool { return a.wake < b.wake }, place: func(w *Worker) *int { return &w.inTimed }}
	c.Limit(0, l)
	return c
}

// Limit changes the limits. A shorter queue sends nobody away, and a new wait limit is for those who come.
func (c *Core) Limit(now time.Duration, l Limits) {
	l.Queue, l.Each, l.Reserve = max(l.Queue, 0), max(l.Each, 0), max(l.Reserve, AutoReserve)
	if l.Anonymous <= 0 || l.Anonymous >= 1 {
		l.Anonymous = 0.5
	}
	c.limits = l
	c.queue.pools[0].weight, c.queue.pools[1].weight = 1-l.Anonymous, l.Anonymous
	c.bound()
	c.Wake(now)
	c.grant(now)
}

// bound sets how many slots a subject may have: fewer than there are.
func (c *Core) bound() {
	each := c.limits.Each
	if c.counts.unbound == 0 {
		each = min(each, c.counts.slots-1)
	}
	c.queue.subjects.resize(each)
}

// Set says who the workers are and returns them in the same order. Names differ. One that is a member already keeps its counts and its
// drain mark. One that is left out runs what it has to its end, and is given nothing more; if it comes again, it is a new one.
func (c *Core) Set(now time.Duration, members []Member) []*Worker {
	before := c.members
	c.members = make(map[string]*Worker, len(members))
	list := make([]*Worker, len(members))
	for i, m := range members {
		m.Weight, m.Slots = min(max(m.Weight, 1), maxWeight), min(max(m.Slots, 0), maxSlots)
		w := before[m.Name]
		if w == nil {
			c.named++
			w = &Worker{id: c.named, warm: -1, seats: newSeats(), first: len(before) == 0, down: errNew}
		}
		if w.member = m; m.SlowStart <= 0 {
			w.warm = -1
		}
		w.ask(now)
		c.members[m.Name], list[i] = w, w
	}
	c.list = slices.Clone(list)
	c.tune()
	for name, w := range before {
		if c.members[name] != w {
			w.removed = true
			c.tuner.quit(w)
			c.settle(w, now)
		}
	}
	for _, w := range list {
		c.settle(w, now)
	}
	c.Wake(now)
	c.grant(now)
	return list
}

func newSeats() heap[*Ticket] {
	return heap[*Ticket]{before: func(a, b *Ticket) bool { return a.end < b.end }, place: func(t *Ticket) *int { return &t.atEnd }}
}

// tune tells the tuner how many slots there are.
func (c *Core) tune() {
	most := 1
	for _, w := range c.list {
		if w.member.Auto {
			most = max(most, w.member.Slots)
		} else {
			c.tuner.quit(w)
		}
	}
	c.tuner.resize(most)
}

// settle brings a worker where it belongs after a change.
func (c *Core) settle(w *Worker, now time.Duration) {
	share := w.share(now)
	w.used = w.member.Slots
	if w.used > 0 {
		if w.member.Auto {
			w.used = c.tuner.limit(w.used, w.trial)
		}
		if w.narrow > 0 {
			w.used = min(w.used, w.narrow)
		}
		w.used = max(1, int(share*float64(w.used)))
	}
	w.load = float64(w.inFlight) / (float64(w.member.Weight) * float64(max(w.member.Slots, 1)) * share)
	w.expected(now)
	w.place = w.placeAt(now)

	var n counts
	if w.place != unable {
		n.workers, n.slow = 1, w.slow
		if w.place.open() {
			n.open = 1
		}
		if w.place == able && w.inFlight == 0 {
			n.idle = 1
		}
		if w.used > 0 {
			n.slots, n.capacity = w.used, w.member.Slots
			if w.member.Auto {
				n.capacity = w.used
			}
		} else {
			n.unbound = 1
		}
	}
	if n != w.counts {
		resized := n.slots != w.counts.slots || n.unbound != w.counts.unbound
		c.counts.add(w.counts, -1)
		c.counts.add(n, 1)
		if w.counts = n; resized && c.limits.Each > 0 {
			c.bound()
		}
		c.tuner.tick(now, c.counts.workers > 0 && (c.counts.idle == 0 || c.spared()))
	}
	if w.place == unable {
		c.order.remove(w)
	} else {
		c.order.put(w)
	}
	if w.wake = w.next(now); w.wake == 0 || w.removed {
		c.timed.remove(w)
	} else {
		c.timed.put(w)
	}
}

// Wake does what is due: workers that start, or failed a while ago, are given more.
func (c *Core) Wake(now time.Duration) {
	due := false
	for {
		w, ok := c.timed.top()
		if !ok || w.wake > now {
			break
		}
		due = true
		if w.down != nil && now >= w.asked+askAgain {
			w.ask(now)
		}
		if w.trial != 0 && now >= w.trialEnds {
			c.level(c.tuner.end(w, c.counts.workers), now)
		}
		c.settle(w, now)
	}
	if due || len(c.queue.subjects.top) > 0 { // one may be alone by now
		c.grant(now)
	}
}

// Next is when Wake has something to do for those who wait; false: nothing, but for what is done by other calls.
func (c *Core) Next(now time.Duration) (at time.Duration, ok bool) {
	if c.queue.waiting == 0 {
		return 0, false
	}
	if w, is := c.timed.top(); is {
		at, ok = w.wake, true
	}
	if lapse, is := c.queue.subjects.lapse(now); is && (!ok || lapse < at) {
		at, ok = lapse, true
	}
	return at, ok
}

// Changed asks all workers whether they are ready.
func (c *Core) Changed(now time.Duration) {
	c.Wake(now)
	c.askAll(now)
	c.grant(now)
}

// askAll is Changed for a newcomer; it tells whether any answer is another one than before.
func (c *Core) askAll(now time.Duration) (changed bool) {
	for _, w := range c.list {
		if w.ask(now) {
			c.settle(w, now)
			changed = true
		}
	}
	return changed
}

// Drain keeps new work from a worker, or ends that. What it has runs on. Both are done at once and may be repeated; an unknown name is an
// error of kind NotFound that says which there are.
func (c *Core) Drain(now time.Duration, name string, draining bool) error {
	w := c.members[name]
	if w == nil {
		return unknown(name, c.members)
	}
	if w.draining && !draining {
		w.begin(now)
	}
	w.draining = draining
	c.settle(w, now)
	c.Wake(now)
	c.grant(now)
	return nil
}

// Narrow leaves only n of a worker's slots in use for now, at least one; as many as there are, or more, ends that. It takes nothing from what
// has one.
func (c *Core) Narrow(now time.Duration, w *Worker, n int) {
	if n = max(n, 1); n >= w.member.Slots {
		n = 0
	}
	if n != w.narrow {
		w.narrow = n
		c.settle(w, now)
		c.Wake(now)
		c.grant(now)
	}
}

// State tells how a worker is.
func (c *Core) State(w *Worker) State {
	s := State{Name: w.member.Name, Weight: w.member.Weight, InFlight: w.inFlight, Slots: w.member.Slots, Used: w.used, Draining: w.draining,
		Starting: w.warm >= 0}
	if w.member.Ready != nil {
		s.Down = w.member.Ready()
	}
	return s
}

// InUse is how much runs now.
func (c *Core) InUse() int { return c.inUse }

// Queued is how much waits now.
func (c *Core) Queued() int { return c.queue.waiting }

// Used is how many slots may be in use now, of the workers that have a bound and can be given work.
func (c *Core) Used() int { return c.counts.slots }
