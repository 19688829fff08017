package balance

import "time"

// queue is the fair line of a Core: whose turn it is among those who wait, and not whether there is a slot.
//
// It is a fair queue by slot time, in two steps: the turn is that of the pool, of those known and those anonymous, and within it of the
// caller, whose account says that it has had least, over its weight. Each grant is charged as the mean of late, and set right when the slot
// comes back. Who comes after a pause begins where the others are (start-time fair queueing, Goyal et al. 1996): no one saves up. Who has had
// more than the others pays for it by waiting, and only that long: so nobody who waits is passed by forever, also where ever new callers come,
// who have had nothing.
//
// Work may be on something, its subject: while there is work on others too, one subject has no more than so many slots (subjects.go).
type queue struct {
	waiting  int
	picky    int     // that wait, and not for any worker
	pools    [2]pool // known, anonymous
	level    time.Duration
	arrivals uint64
	held     time.Duration // moving average of how long slots are held
	typical  time.Duration // about their median: few that are held for long do not change it
	observed int           // how many both are made from
	subjects subjects
}

// pool is some callers that share a part of the slots.
type pool struct {
	account
	weight  float64
	level   time.Duration // the account of who was served last
	callers map[Caller]*account
	lines   [2]heap[*line] // slow work, and fast; the line whose turn it is on top
	greedy  heap[*account] // those who wait; who has most in the queue on top
	debtors heap[*account] // those who have no work, but debts; the least on top
}

// account is what a caller, or a pool, has had: time of slots over weight.
type account struct {
	had     time.Duration
	since   time.Duration // while it waits: the begin of that, or its last grant if that was later; not of a pool
	queued  int           // tickets that wait
	holding int           // slots

	// Not of a pool.
	caller             Caller
	lines              [2]line // slow work, and fast
	atGreedy, atDebtor int
}

// line is what waits of one caller and class.
type line struct {
	account     *account
	first, last *Ticket
	place       int
}

// before tells whether a's turn comes before b's: who waits gets ahead by the time for which it does. Among equals it is the oldest.
func (a *line) before(b *line) bool { return a.first.before(b.first) }

func (a *Ticket) before(b *Ticket) bool {
	x, y := a.line.account, b.line.account
	if x.had+x.since != y.had+y.since {
		return x.had+x.since < y.had+y.since
	}
	return a.arrival < b.arrival
}

func (l *line) push(t *Ticket) {
	t.line, t.older = l, l.last
	if l.last == nil {
		l.first = t
	} else {
		l.last.younger = t
	}
	l.last = t
}

func (l *line) remove(t *Ticket) {
	if t.older == nil {
		l.first = t.younger
	} else {
		t.older.younger = t.younger
	}
	if t.younger == nil {
		l.last = t.older
	} else {
		t.younger.older = t.older
	}
	t.line, t.older, t.younger = nil, nil, nil
}

// oldest is the first ticket that fits; nil for none.
func (l *line) oldest(fits func(*Ticket) bool) *Ticket {
	for t := l.first; t != nil; t = t.younger {
		if fits(t) {
			return t
		}
	}
	return nil
}

const (
	leastCharge = time.Millisecond // so that callers take turns also where slots are held for no time
	mostDebt    = 30 * time.Second // by how much the account of one who waits is above the others', and so how long newcomers pass it by
	enough      = 16               // so many grants tell how long slots are held
	keptIdle    = 1024             // accounts of callers with debts and no work
)

func newQueue() queue {
	q := queue{subjects: subjects{all: map[string]*subject{}}}
	for i := range q.pools {
		p := &q.pools[i]
		p.callers = map[Caller]*account{}
		for class := range p.lines {
			p.lines[class] = heap[*line]{before: (*line).before, place: func(l *line) *int { return &l.place }}
		}
		p.greedy = heap[*account]{before: (*account).greedier, place: func(a *account) *int { return &a.atGreedy }}
		p.debtors = heap[*account]{before: func(a, b *account) bool { return a.had < b.had }, place: func(a *account) *int { return &a.atDebtor }}
	}
	return q
}

func (q *queue) poolOf(c Caller) *pool {
	if c.Anonymous() {
		return &q.pools[1]
	}
	return &q.pools[0]
}

// wake brings the account of who comes with work to where the others are, if it had none.
func (q *queue) wake(c Caller) *account {
	p := q.poolOf(c)
	a := p.callers[c]
	if a == nil {
		a = &account{caller: c}
		a.lines[0].account, a.lines[1].account = a, a
		p.callers[c] = a
	}
	p.debtors.remove(a)
	p.wake(q.level)
	a.wake(p.level)
	p.sort(a)
	return a
}

// wake brings an account that had no work to where the others are.
func (a *account) wake(level time.Duration) {
	if a.queued == 0 && a.holding == 0 {
		a.had = max(a.had, level)
	}
	a.had = min(a.had, level+mostDebt)
}

// sort puts an account that has changed where it belongs.
func (p *pool) sort(a *account) {
	for class := range a.lines {
		if l := &a.lines[class]; l.first != nil {
			p.lines[class].put(l)
		} else {
			p.lines[class].remove(l)
		}
	}
	if a.queued > 0 {
		p.greedy.put(a)
	} else {
		p.greedy.remove(a)
	}
}

// enter has a ticket wait.
func (q *queue) enter(t *Ticket, now time.Duration) {
	a, p := q.wake(t.Caller), q.poolOf(t.Caller)
	q.arrivals++
	t.arrival = q.arrivals
	if a.queued == 0 {
		a.since = now
	}
	class := 0
	if t.Fast {
		class = 1
	}
	a.lines[class].push(t)
	q.count(p, a, t, 1)
	q.subjects.count(t.Subject, 1, 0)
	p.sort(a)
}

// leave takes a ticket out of the line that is given up, or refused.
func (q *queue) leave(t *Ticket) {
	q.unqueue(t)
	p := q.poolOf(t.Caller)
	p.forget(p.callers[t.Caller])
}

// unqueue takes a ticket out of the line.
func (q *queue) unqueue(t *Ticket) {
	p := q.poolOf(t.Caller)
	a := p.callers[t.Caller]
	t.line.remove(t)
	q.count(p, a, t, -1)
	q.subjects.count(t.Subject, -1, 0)
	p.sort(a)
}

func (q *queue) count(p *pool, a *account, t *Ticket, n int) {
	if t.picky() {
		q.picky += n
	}
	a.queued += n
	p.queued += n
	q.waiting += n
}

// begin charges for a slot that is given to a ticket, which has just been taken out of the line, or was woken and never in it.
func (q *queue) begin(t *Ticket, now time.Duration) {
	p := q.poolOf(t.Caller)
	a := p.callers[t.Caller]
	q.level, p.level = max(q.level, p.had), max(p.level, a.had)
	q.subjects.count(t.Subject, 0, 1)
	t.charged = max(q.held, leastCharge)
	a.since = now
	a.charge(t.charged, 1)
	p.charge(t.charged, p.weight)
	a.holding++
	p.holding++
	p.sort(a)
}

// end sets right what was charged for a slot that comes back.
func (q *queue) end(t *Ticket, now time.Duration) {
	held := now - t.since
	if !t.Aside {
		q.observe(held)
	}
	p := q.poolOf(t.Caller)
	a := p.callers[t.Caller]
	a.charge(held-t.charged, 1)
	p.charge(held-t.charged, p.weight)
	q.subjects.count(t.Subject, 0, -1)
	a.holding--
	p.holding--
	p.sort(a)
	p.forget(a)
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
// were; 0 where too little is known, or plainly it is no more than some limit. What the other pool has to do, and what has a slot, are left out.
func (q *queue) expect(c Caller, slots int, limit, now time.Duration) (wait, other time.Duration) {
	p, one := q.poolOf(c), min(q.typical, q.held)
	if q.observed < enough || one*time.Duration(p.queued)/time.Duration(slots) <= limit {
		return 0, 0
	}
	step := max(q.held, leastCharge)
	begin := p.level // what the account has when its turn comes
	if a := p.callers[c]; a != nil {
		begin = min(max(a.had, p.level), p.level+mostDebt)
		if a.queued > 0 {
			begin = a.had + time.Duration(a.queued)*step - (now - a.since)
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
	return one * time.Duration(ahead) / time.Duration(slots), one * time.Duration(before) / time.Duration(slots)
}

// ahead is how much of what waits comes before a caller who will have had so much, if each piece is charged a step.
func (a *account) ahead(had, step time.Duration) int {
	if had < a.had {
		return 0
	}
	return min(a.queued, int((had-a.had)/step)+1)
}

// greediest is the ticket that leaves a full queue to one more of c's, nil if c's own share is the greatest already; and whether that is for the share
// of its caller.
func (q *queue) greediest(c Caller) (victim *Ticket, share bool) {
	p, mine := q.poolOf(c), 1
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
	most, ok := from.greedy.top()
	if !ok || most.queued <= mine {
		return nil, false
	}
	victim = most.youngest()
	return victim, q.crowds(victim.Caller) || from != p
}

// greedier tells whether what came last of a goes rather than that of b.
func (a *account) greedier(b *account) bool {
	if a.queued != b.queued {
		return a.queued > b.queued
	}
	return a.youngest().arrival > b.youngest().arrival
}

// youngest is what came last of an account that waits.
func (a *account) youngest() *Ticket {
	slow, fast := a.lines[0].last, a.lines[1].last
	if slow == nil || fast != nil && fast.arrival > slow.arrival {
		return fast
	}
	return slow
}

func (a *account) charge(d time.Duration, weight float64) {
	a.had += time.Duration(float64(d) / weight)
}

// forget drops the account of a caller without work, but for one with debts: these are kept, as long as they are few.
func (p *pool) forget(a *account) {
	if a.queued > 0 || a.holding > 0 {
		return
	}
	p.debtors.put(a)
	for {
		least, ok := p.debtors.top()
		if !ok || least.had > p.level && len(p.debtors.all) <= keptIdle {
			return
		}
		p.debtors.remove(least)
		delete(p.callers, least.caller)
	}
}

// next is the ticket whose turn it is of those that fit, nil for none; slow work counts if it may have a slot.
func (q *queue) next(slow bool, fits func(*Ticket) bool) *Ticket {
	first, second := &q.pools[0], &q.pools[1] // known, anonymous
	if second.queued > 0 && (first.queued == 0 || first.had > second.had) {
		first, second = second, first
	}
	if t := first.next(slow, fits); t != nil {
		return t
	}
	return second.next(slow, fits)
}

func (p *pool) next(slow bool, fits func(*Ticket) bool) *Ticket {
	lines := p.lines[:]
	if !slow {
		lines = lines[1:]
	}
	var best *line
	for i := range lines {
		if l, ok := lines[i].top(); ok && (best == nil || l.before(best)) {
			best = l
		}
	}
	if best == nil {
		return nil
	}
	if fits(best.first) { // mostly
		return best.first
	}
	var found *Ticket
	for i := range lines {
		lines[i].ascend(func(l *line) bool {
			t := l.oldest(fits)
			if t != nil && (found == nil || t.before(found)) {
				found = t
			}
			return t != nil
		})
	}
	return found
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
