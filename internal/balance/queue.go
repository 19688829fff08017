package balance

import (
	"container/list"
	"slices"
	"time"
)

// queue is the core of Slots: no lock, no clock, no channel operation that can block.
//
// It is a fair queue by slot time, in two steps: a free slot goes to the pool, of those known and those anonymous, and within it to the
// caller, whose account says that it has had least, over its weight. Each grant is charged as the mean of late, and set right when the slot
// comes back. Who comes after a pause begins where the others are (start-time fair queueing, Goyal et al. 1996): no one saves up. Who has had
// more than the others pays for it by waiting, and only that long: so nobody who waits is passed by forever, also where ever new callers come,
// who have had nothing.
//
// Work may be on something, its subject: while there is work on others too, one subject has no more than so many slots (subjects.go).
type queue struct {
	slots, max int // how many may hold a slot, and how many may wait
	inUse      int // more than slots only after these were made fewer
	waiting    int
	pools      [2]pool // known, anonymous
	level      time.Duration
	arrivals   uint64
	held       time.Duration // moving average of how long slots are held
	typical    time.Duration // about their median: few that are held for long do not change it
	observed   int           // how many both are made from
	subjects   subjects
}

// pool is some callers that share a part of the slots.
type pool struct {
	account
	weight  float64
	level   time.Duration // the account of who was served last
	callers map[Caller]*account
}

// account is what a caller, or a pool, has had: time of slots over weight.
type account struct {
	had     time.Duration
	since   time.Time // while it waits: the begin of that, or its last grant if that was later; not of a pool
	waiting list.List // of *ticket, the oldest in front; empty in a pool
	queued  int       // tickets that wait
	holding int       // slots
}

// ticket is one piece of work: waiting while elem is set, then holding a slot or refused, then gone.
type ticket struct {
	answered chan struct{} // closed when a slot was given or refused
	refused  bool
	share    bool // with refused: for its caller's share; others would have been let in
	caller   Caller
	subject  string
	arrival  uint64
	since    time.Time     // when the slot was given
	charged  time.Duration // for it
	elem     *list.Element
	gone     bool
}

const (
	leastCharge = time.Millisecond // so that callers take turns also where slots are held for no time
	mostDebt    = 30 * time.Second // by how much the account of one who waits is above the others', and so how long newcomers pass it by
	enough      = 16               // so many grants tell how long slots are held
	keptIdle    = 1024             // accounts of callers with debts and no work
)

func newQueue() queue {
	return queue{pools: [2]pool{{callers: map[Caller]*account{}}, {callers: map[Caller]*account{}}}, subjects: subjects{all: map[string]*subject{}}}
}

func (q *queue) poolOf(c Caller) *pool {
	if c.Anonymous() {
		return &q.pools[1]
	}
	return &q.pools[0]
}

// enter gives a slot or a place in the queue; nil if neither is free. A full queue has room for a caller who has fewer in it than the
// greediest: the youngest of that one is refused.
func (q *queue) enter(c Caller, on string, now time.Time) *ticket {
	p := q.poolOf(c)
	q.subjects.arrive(on, now)
	q.grant(now) // a minute may be over; from here on who waits can have none of the slots that are free
	if (q.inUse >= q.slots || q.subjects.bounded(on, now)) && q.waiting >= q.max {
		victim := q.greediest(p, c)
		if victim == nil {
			return nil
		}
		victim.share = q.crowds(victim.caller) || p != q.poolOf(victim.caller)
		q.refuse(victim)
	}
	a := p.callers[c]
	if a == nil {
		a = new(account)
		p.callers[c] = a
	}
	q.level = p.wake(q.level)
	p.level = a.wake(p.level)
	q.arrivals++
	t := &ticket{answered: make(chan struct{}), caller: c, subject: on, arrival: q.arrivals}
	t.elem = a.waiting.PushBack(t)
	if a.queued == 0 {
		a.since = now
	}
	q.count(p, a, 1)
	q.subjects.count(on, 1, 0)
	q.grant(now)
	return t
}

// share tells whether a caller who waits is held up by other work of its own: somebody who has none would be served before it.
func (q *queue) share(c Caller) bool {
	a := q.poolOf(c).callers[c]
	return a != nil && c != "" && a.queued+a.holding > 1
}

// crowds tells whether a full queue would make room for somebody else by refusing a caller's work.
func (q *queue) crowds(c Caller) bool {
	a := q.poolOf(c).callers[c]
	return a != nil && c != "" && a.queued > 1
}

// expect is how long a caller waits at the least who comes now, and how long somebody who has nothing here, if slots are held for as long as most
// were; 0 where one is free, or too little is known. What the other pool has to do, and what has a slot, are left out.
func (q *queue) expect(c Caller, slots int, now time.Time) (wait, other time.Duration) {
	if q.inUse < q.slots || q.observed < enough {
		return 0, 0
	}
	p := q.poolOf(c)
	step := max(q.held, leastCharge)
	begin := p.level // what the account has when its turn comes
	if a := p.callers[c]; a != nil {
		begin = min(max(a.had, p.level), p.level+mostDebt)
		if a.queued > 0 {
			begin = a.had + time.Duration(a.queued)*step - now.Sub(a.since)
		}
	}
	ahead, before := 0, 0 // how many come before it, and before the other one
	for name, a := range p.callers {
		if before += a.ahead(p.level, step); name != c {
			ahead += a.ahead(begin, step)
		} else {
			ahead += a.queued
		}
	}
	one := min(q.typical, q.held)
	return one * time.Duration(ahead) / time.Duration(slots), one * time.Duration(before) / time.Duration(slots)
}

// ahead is how much of what waits comes before a caller who will have had so much, if each piece is charged a step.
func (a *account) ahead(had, step time.Duration) int {
	if had < a.had {
		return 0
	}
	return min(a.queued, int((had-a.had)/step)+1)
}

// wake brings an account that had no work to where the others are.
func (a *account) wake(level time.Duration) time.Duration {
	if a.queued == 0 && a.holding == 0 {
		a.had = max(a.had, level)
	}
	a.had = min(a.had, level+mostDebt)
	return level
}

func (q *queue) count(p *pool, a *account, n int) {
	a.queued += n
	p.queued += n
	q.waiting += n
}

// greediest is the ticket that leaves a full queue to one more of c's, nil if c's own share is the greatest already.
func (q *queue) greediest(p *pool, c Caller) *ticket {
	mine := 1
	if a := p.callers[c]; a != nil {
		mine += a.queued
	}
	from := p
	for i := range q.pools {
		other := &q.pools[i]
		if other != p && float64(other.queued)*p.weight > float64(p.queued+1)*other.weight {
			from, mine = other, 0 // of a pool that has more than its part, anybody
		}
	}
	var most *account
	for _, a := range from.callers {
		if a.queued > mine && (most == nil || a.queued > most.queued || a.queued == most.queued && a.youngest().arrival > most.youngest().arrival) {
			most = a
		}
	}
	if most == nil {
		return nil
	}
	return most.youngest()
}

func (a *account) youngest() *ticket { return a.waiting.Back().Value.(*ticket) }

// oldest is the first ticket whose subject is not full; nil for none.
func (a *account) oldest(full []string) *ticket {
	for e := a.waiting.Front(); e != nil; e = e.Next() {
		if t := e.Value.(*ticket); len(full) == 0 || !slices.Contains(full, t.subject) {
			return t
		}
	}
	return nil
}

func (q *queue) refuse(t *ticket) {
	q.unqueue(t)
	t.refused, t.gone = true, true
	close(t.answered)
}

// unqueue takes a ticket out of the line.
func (q *queue) unqueue(t *ticket) {
	p := q.poolOf(t.caller)
	a := p.callers[t.caller]
	a.waiting.Remove(t.elem)
	t.elem = nil
	q.count(p, a, -1)
	q.subjects.count(t.subject, -1, 0)
	p.forget(t.caller, a)
}

// leave ends a wait or gives a slot back, whatever t is at; the second time it does nothing.
func (q *queue) leave(t *ticket, now time.Time) {
	if t.gone {
		return
	}
	t.gone = true
	if t.elem != nil {
		q.unqueue(t)
		q.grant(now) // as in enter
		return
	}
	held := now.Sub(t.since)
	q.observe(held)
	p := q.poolOf(t.caller)
	a := p.callers[t.caller]
	a.charge(held-t.charged, 1)
	p.charge(held-t.charged, p.weight)
	q.inUse--
	q.subjects.count(t.subject, 0, -1)
	a.holding--
	p.holding--
	p.forget(t.caller, a)
	q.grant(now)
}

func (a *account) charge(d time.Duration, weight float64) {
	a.had += time.Duration(float64(d) / weight)
}

// forget drops the account of a caller without work, but for one with debts, as long as these are few.
func (p *pool) forget(c Caller, a *account) {
	if a.queued > 0 || a.holding > 0 {
		return
	}
	if len(p.callers) > keptIdle {
		for other, b := range p.callers {
			if b.queued == 0 && b.holding == 0 && b.had <= p.level {
				delete(p.callers, other)
			}
		}
	}
	if a.had <= p.level || len(p.callers) > keptIdle {
		delete(p.callers, c)
	}
}

// resize changes the bounds; anonymous is the part of that pool, from 0 to 1, and 0 stands for a half. Each is how many slots a subject may have; 0 for no
// bound, which a single slot never has.
func (q *queue) resize(slots, most int, anonymous float64, each int, now time.Time) {
	if anonymous <= 0 || anonymous >= 1 {
		anonymous = 0.5
	}
	q.pools[0].weight, q.pools[1].weight = 1-anonymous, anonymous
	q.slots, q.max = slots, most
	q.subjects.resize(min(each, slots-1))
	q.grant(now)
}

// grant gives free slots to those who wait.
func (q *queue) grant(now time.Time) {
	for q.inUse < q.slots {
		full, waiting := q.subjects.full(now)
		if q.waiting <= waiting {
			return
		}
		p, t := q.next(full, now)
		a := p.callers[t.caller]
		q.level, p.level = max(q.level, p.had), max(p.level, a.had)
		a.waiting.Remove(t.elem)
		t.elem = nil
		q.count(p, a, -1)
		q.subjects.count(t.subject, -1, 1)
		t.since, t.charged = now, max(q.held, leastCharge)
		a.since = now
		a.charge(t.charged, 1)
		p.charge(t.charged, p.weight)
		q.inUse++
		a.holding++
		p.holding++
		close(t.answered)
	}
}

// next is the ticket that gets the next slot, and its pool. One waits whose subject is not among the full ones.
func (q *queue) next(full []string, now time.Time) (*pool, *ticket) {
	first, second := &q.pools[0], &q.pools[1] // known, anonymous
	if second.queued > 0 && (first.queued == 0 || first.had > second.had) {
		first, second = second, first
	}
	if t := first.next(full, now); t != nil {
		return first, t
	}
	return second, second.next(full, now)
}

// next is the ticket of the pool that gets the next slot, nil if the subjects of all are full. Among equals it is the oldest.
func (p *pool) next(full []string, now time.Time) *ticket {
	var best *ticket
	var least time.Duration
	for _, a := range p.callers {
		if a.queued == 0 {
			continue
		}
		owes := a.had - now.Sub(a.since)
		if best != nil && owes > least {
			continue
		}
		if t := a.oldest(full); t != nil && (best == nil || owes < least || t.arrival < best.arrival) {
			best, least = t, owes
		}
	}
	return best
}

func (q *queue) observe(d time.Duration) {
	q.observed = min(q.observed+1, enough)
	if q.observed == 1 {
		q.held, q.typical = d, d
		return
	}
	q.held += (d - q.held) / 8
	switch {
	case d > q.typical:
		q.typical += min(d-q.typical, q.typical/8+leastCharge)
	case d < q.typical:
		q.typical -= min(q.typical-d, q.typical/8+leastCharge)
	}
}

// retryAfter guesses when a newcomer would find the queue worked off: within what is sensible to tell a client.
func (q *queue) retryAfter() time.Duration {
	d := q.held * time.Duration(q.waiting+1) / time.Duration(q.slots)
	return min(max(d, time.Second), time.Minute)
}
