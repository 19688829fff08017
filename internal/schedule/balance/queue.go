package balance

import (
	"slices"
	"time"
)

// queue holds the work that waits and decides whose turn it is.
//
// It is fair by slot time in two steps. The turn is that of the pool, of known or of anonymous callers, that has had
// the least slot time for its weight. Within the pool it is that of the caller that has had the least. Each assignment
// is charged with the recent mean, and corrected when the slot is free again. A caller that comes after a pause starts
// where the others are (start-time fair queueing, Goyal et al. 1996), so that no caller saves up slot time. A caller
// that has had more than the others pays for it by waiting, and waiting reduces the debt. So no waiting caller is
// passed over forever.
type queue struct {
	checks  []*Ticket // in order of arrival
	waiting []*Ticket // the rest, in order of arrival
	pools   [2]pool   // known, anonymous

	level    time.Duration // slot time of the pool that was served last
	arrivals uint64
	subjects subjects

	held     time.Duration // moving average of the time for which slots are held
	typical  time.Duration // about the median of it
	observed int           // samples in both, up to enough
}

// The pools.
const (
	known = iota
	anonymous
)

// pool is a set of callers that share a part of the slots.
type pool struct {
	usage
	weight   float64
	level    time.Duration // slot time of the caller that was served last
	accounts map[Caller]*account
}

// account is the usage of a caller.
type account struct {
	usage
	pool   *pool
	caller Caller
	since  time.Duration // start of its wait, or its last assignment if that was later
}

// usage is what a caller or a pool has and has had.
type usage struct {
	had     time.Duration // slot time for its weight
	queued  int
	holding int
}

func (u *usage) isIdle() bool { return u.queued == 0 && u.holding == 0 }

const (
	leastCharge = time.Millisecond // keeps turns fair where slots are held for almost no time
	mostDebt    = 30 * time.Second // by which an account can be ahead of the others
	enough      = 16               // samples that make held and typical reliable
	keptIdle    = 1024             // accounts of a pool above which idle ones are removed
)

func newQueue() queue {
	q := queue{subjects: subjects{all: map[string]*subject{}}}
	for i := range q.pools {
		q.pools[i].accounts = map[Caller]*account{}
	}
	return q
}

func (q *queue) poolOf(c Caller) *pool {
	if c.Anonymous() {
		return &q.pools[anonymous]
	}
	return &q.pools[known]
}

// find returns the account of a caller; a zero one if there is none.
func (q *queue) find(c Caller) *account {
	if a := q.poolOf(c).accounts[c]; a != nil {
		return a
	}
	return &account{}
}

// open gives a new ticket the account of its caller. An idle account is brought to the level of the others.
func (q *queue) open(t *Ticket) {
	if t.Check {
		return
	}
	p := q.poolOf(t.Caller)
	a := p.accounts[t.Caller]
	if a == nil {
		a = &account{caller: t.Caller, pool: p}
		p.accounts[t.Caller] = a
	}
	p.catchUp(q.level)
	a.catchUp(p.level)
	t.account = a
}

func (u *usage) catchUp(level time.Duration) {
	if u.isIdle() {
		u.had = max(u.had, level)
	}
	u.had = min(u.had, level+mostDebt)
}

// enter lets a ticket wait.
func (q *queue) enter(t *Ticket, now time.Duration) {
	q.open(t)
	q.arrivals++
	t.arrival = q.arrivals
	if t.account.queued == 0 {
		t.account.since = now
	}
	q.waiting = append(q.waiting, t)
	q.count(t, 1)
}

// remove takes a ticket out of the queue.
func (q *queue) remove(t *Ticket) {
	list := &q.waiting
	if t.Check {
		list = &q.checks
	}
	i := slices.Index(*list, t)
	*list = slices.Delete(*list, i, i+1)
	q.count(t, -1)
}

func (q *queue) count(t *Ticket, n int) {
	if t.Check {
		return
	}
	t.account.queued += n
	t.account.pool.queued += n
	q.subjects.count(t.Subject, n, 0)
}

// charge charges the account of a ticket for a slot that it is given.
func (q *queue) charge(t *Ticket, now time.Duration) {
	if t.Check {
		return
	}
	a, p := t.account, t.account.pool
	q.level, p.level = max(q.level, p.had), max(p.level, a.had)
	t.charged = max(q.held, leastCharge)
	a.since = now
	q.use(t, t.charged, 1)
}

// settle corrects the charge when the slot is free again.
func (q *queue) settle(t *Ticket, now time.Duration) {
	if t.Check {
		return
	}
	q.observe(now - t.since)
	q.use(t, now-t.since-t.charged, -1)
}

func (q *queue) use(t *Ticket, d time.Duration, slots int) {
	a, p := t.account, t.account.pool
	a.had += d
	p.had += time.Duration(float64(d) / p.weight)
	a.holding += slots
	p.holding += slots
	q.subjects.count(t.Subject, 0, slots)
}

// close drops the account of a ticket that is gone if the account is idle. Accounts in debt are kept, up to keptIdle.
func (q *queue) close(t *Ticket) {
	a := t.account
	if a == nil || !a.isIdle() {
		return
	}
	p := a.pool
	if a.had <= p.level {
		delete(p.accounts, a.caller)
		return
	}
	for len(p.accounts) > keptIdle {
		var least *account
		for _, other := range p.accounts {
			if other.isIdle() && (least == nil || other.had < least.had) {
				least = other
			}
		}
		if least == nil {
			return
		}
		delete(p.accounts, least.caller)
	}
}

// next returns the ticket whose turn it is among those that fit; nil if there is none.
func (q *queue) next(fits func(*Ticket) bool) (best *Ticket) {
	first := &q.pools[known]
	if other := &q.pools[anonymous]; other.queued > 0 && (first.queued == 0 || first.had > other.had) {
		first = other
	}
	for _, t := range q.waiting {
		if (best == nil || t.isBefore(best, first)) && fits(t) {
			best = t
		}
	}
	return best
}

// isBefore reports whether the turn of t comes before that of other. Waiting brings an account forward by the time it
// waits.
func (t *Ticket) isBefore(other *Ticket, first *pool) bool {
	a, b := t.account, other.account
	if a.pool != b.pool {
		return a.pool == first
	}
	if x, y := a.had+a.since, b.had+b.since; x != y {
		return x < y
	}
	return t.arrival < other.arrival
}

// isBehindItself reports whether a waiting caller is delayed by other work of the same caller.
func (q *queue) isBehindItself(c Caller) bool {
	a := q.find(c)
	return c != "" && a.queued+a.holding > 1
}

// hasWaiting reports whether at least n pieces of a caller's work wait.
func (q *queue) hasWaiting(c Caller, n int) bool { return c != "" && q.find(c).queued >= n }

// greediest returns the ticket that makes room in a full queue for another one of caller c, and whether it leaves
// because its own caller has too many. Nil means that c itself has the largest share already.
func (q *queue) greediest(c Caller) (victim *Ticket, isShare bool) {
	own := q.poolOf(c)
	from, mine := own, q.find(c).queued+1
	for i := range q.pools {
		other := &q.pools[i]
		if other != own && float64(other.queued)*own.weight > float64(own.queued+1)*other.weight {
			from, mine = other, 0 // any caller of a pool that has more than its part
		}
	}
	for _, t := range slices.Backward(q.waiting) {
		if t.account.pool == from && (victim == nil || t.account.queued > victim.account.queued) {
			victim = t
		}
	}
	if victim == nil || victim.account.queued <= mine {
		return nil, false
	}
	return victim, q.hasWaiting(victim.Caller, 2) || from != own
}

// expectWait estimates how long new work of caller c would wait, and how long that of a caller without any work. Both
// are 0 where too little is known, or where all work of the pool takes less than limit.
func (q *queue) expectWait(c Caller, slots int, limit, now time.Duration) (wait, other time.Duration) {
	p, each := q.poolOf(c), min(q.typical, q.held)
	if q.observed < enough || each*time.Duration(p.queued)/time.Duration(slots) <= limit {
		return 0, 0
	}
	step := max(q.held, leastCharge)
	begin := p.level // what the account of c will have had when its turn comes
	if a := p.accounts[c]; a != nil {
		begin = min(max(a.had, p.level), p.level+mostDebt)
		if a.queued > 0 {
			begin = a.had + time.Duration(a.queued)*step - (now - a.since)
		}
	}
	ahead, aheadOfOther := 0, 0
	for caller, a := range p.accounts {
		aheadOfOther += a.ahead(p.level, step)
		if caller == c {
			ahead += a.queued
		} else {
			ahead += a.ahead(begin, step)
		}
	}
	return each * time.Duration(ahead) / time.Duration(slots), each * time.Duration(aheadOfOther) / time.Duration(slots)
}

// ahead returns how much of the account's waiting work comes before a caller that will have had so much, at one step
// for each piece.
func (a *account) ahead(had, step time.Duration) int {
	if had < a.had {
		return 0
	}
	return min(a.queued, int((had-a.had)/step)+1)
}

// observe notes for how long a slot was held.
func (q *queue) observe(d time.Duration) {
	q.observed = min(q.observed+1, enough)
	if q.observed == 1 {
		q.held, q.typical = d, d
		return
	}
	q.held += (d - q.held) / 8
	most := q.typical/8 + leastCharge
	q.typical += min(max(d-q.typical, -most), most)
}
