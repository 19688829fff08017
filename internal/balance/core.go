package balance

import (
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
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

// Work is what a worker is wanted for.
type Work struct {
	Caller  Caller
	Subject string // what it is on, for Limits.Each; "": nothing
	Route   string // work of one route takes about as long; "": as all work does
	Fast    bool   // it may have the slots in reserve
	// Among are the workers that can have it; nil: all. It is not changed while the work waits. To choose among some looks at each of them, among all it does not.
	Among  []*Worker
	Tried  []string // names of those that are not to have it
	NoWait bool     // if there is no free slot it is refused
}

// picky tells whether not all workers can have it.
func (w *Work) picky() bool { return w.Among != nil || len(w.Tried) > 0 }

// Outcome says how work ended.
type Outcome int

const (
	OK     Outcome = iota
	Failed         // by the worker's fault
	Cut            // before its end, as by its client: it says nothing about how long work takes
)

// Ticket is one piece of work: waiting, then at a worker or refused, then gone.
type Ticket struct {
	Work
	worker *Worker
	reason Reason
	shared bool
	err    error // it was refused
	gone   bool

	arrival        uint64
	came           time.Duration
	since          time.Duration // when it got its worker
	charged        time.Duration // for it
	end            time.Duration // when it is expected to end
	spent          spent         // by its worker when it began
	atEnd          int           // its place among its worker's
	line           *line         // where it waits
	older, younger *Ticket       // there

	answered chan struct{} // of a Scheduler: closed by its answer
}

// Worker is the one that has the work; nil: it waits, or was refused.
func (t *Ticket) Worker() *Worker { return t.worker }

// Err tells why it was refused.
func (t *Ticket) Err() error { return t.err }

// Reason tells why the worker was the one.
func (t *Ticket) Reason() Reason { return t.reason }

// Shared tells whether the worker had other work while another one, that could have had this, had none. It never is.
func (t *Ticket) Shared() bool { return t.shared }

// Waited is the time in the queue.
func (t *Ticket) Waited() time.Duration { return max(t.since-t.came, 0) }

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
	l.Queue, l.Each, l.Reserve = max(l.Queue, 0), max(l.Each, 0), max(l.Reserve, 0)
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
			w = &Worker{id: c.named, warm: -1, seats: newSeats()}
			if w.member = m; len(before) > 0 {
				w.begin(now)
			}
		}
		if w.member = m; m.SlowStart <= 0 {
			w.warm = -1
		}
		if m.Ready == nil {
			w.down = nil
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
		c.tuner.tick(now, c.counts.workers > 0 && c.counts.idle == 0)
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
			c.level(c.tuner.end(w), now)
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

// Enter gives work to a worker, or a place in the queue. Errors: Exhausted if the queue is full, or plainly the wait would be too long, fault.Share if it is
// the caller's own work that it would wait for; Unavailable if there is no worker that could ever have it.
func (c *Core) Enter(now time.Duration, work Work) (*Ticket, error) {
	c.Wake(now)
	c.queue.subjects.arrive(work.Subject, now)
	t := &Ticket{Work: work, came: now, since: now}
	w, could := c.choose(t, now)
	if w == nil && c.explore(now) {
		w, could = c.choose(t, now)
	}
	if w != nil && !c.held(t, now) {
		c.queue.wake(t.Caller)
		c.give(t, w, could, now)
		return t, nil
	}
	switch {
	case could == 0 && c.askAll(now):
		return c.Enter(now, work)
	case could == 0:
		return nil, errNobody
	case work.NoWait:
		return nil, errBusy
	}
	retry := c.retryAfter()
	if limit := c.limits.Wait; limit > 0 && c.full() {
		wait, other := c.queue.expect(work.Caller, max(c.counts.capacity, 1), limit, now)
		if wait > limit {
			return nil, exhausted(work.Caller != "" && other <= limit, retry, "no slot would become free in time; try again")
		}
	}
	if c.queue.waiting >= c.limits.Queue {
		victim, share := c.queue.greediest(work.Caller)
		if victim == nil {
			return nil, exhausted(c.queue.crowds(work.Caller), retry, tooMany)
		}
		c.queue.leave(victim)
		victim.gone, victim.err = true, exhausted(share, retry, tooMany)
		c.answer(victim)
	}
	c.queue.enter(t, now)
	return t, nil
}

const tooMany = "too many requests of this kind are waiting already"

var (
	errNobody = fault.Retry(fault.Unavailable, time.Second, "nobody takes requests of this kind now; try again")
	errBusy   = fault.Retry(fault.Exhausted, time.Second, "all who take requests of this kind are busy; try again")
)

func exhausted(share bool, retry time.Duration, message string) error {
	if share {
		return fault.Share(retry, "%s", message)
	}
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
	return c.limits.Reserve > 0 && c.counts.unbound == 0 && c.counts.slow >= max(c.counts.slots-c.limits.Reserve, 1)
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
	look := func(w *Worker) {
		if slices.Contains(t.Tried, w.member.Name) {
			return
		}
		if w.ask(now) || w.expected(now) {
			c.settle(w, now)
		}
		if w.place == unable {
			return
		}
		if could++; best == nil || w.before(best) {
			best = w
		}
	}
	for _, w := range c.among(t) {
		look(w)
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
	w := t.worker
	if w == nil {
		subjects := len(c.queue.subjects.all)
		c.queue.leave(t)
		if len(c.queue.subjects.all) < subjects { // another one may be alone now
			c.grant(now)
		}
		return
	}
	c.queue.end(t, now)
	c.tuner.note(w, now)
	if how == OK {
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
	c.grant(now)
	if c.queue.waiting > 0 {
		c.explore(now)
	}
}

// learn takes in how long work took.
func (c *Core) learn(t *Ticket, now time.Duration) {
	w := t.worker
	if worth, known := c.takes.worth(t.Route); known && w.member.Auto {
		changed := c.tuner.learn(t, worth)
		if w.trial != 0 && w.trialLeft <= 0 {
			changed = c.tuner.end(w) || changed
		}
		c.level(changed, now)
	}
	c.takes.add(t.Route, now-t.since)
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
	if !ok || w.place != full || !w.member.Auto || w.trial != 0 {
		return false
	}
	trial := c.tuner.next(c.counts.workers)
	if trial == 0 {
		return false
	}
	c.tuner.begin(w, trial, now, max(c.takes.all.mean, leastCharge))
	c.settle(w, now)
	c.grant(now)
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
