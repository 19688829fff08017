package balance

import (
	"container/list"
	"time"
)

// queue is the core of Slots: no lock, no clock, no channel operation that can block.
type queue struct {
	slots, max int       // how many may hold a slot, and how many may wait
	inUse      int       // more than slots only after these were made fewer
	waiting    list.List // of *ticket, the oldest in front
	held       time.Duration
}

// ticket is one caller: waiting while elem is set, then holding a slot, then gone.
type ticket struct {
	granted chan struct{} // closed when a slot was given
	since   time.Time     // when it was given
	elem    *list.Element
	gone    bool
}

// enter gives a slot or a place in the queue; false if neither is free.
func (q *queue) enter(now time.Time) (*ticket, bool) {
	t := &ticket{granted: make(chan struct{})}
	switch {
	case q.inUse < q.slots: // then nobody waits: grant leaves no slot free while somebody does
		q.give(t, now)
	case q.waiting.Len() < q.max:
		t.elem = q.waiting.PushBack(t)
	default:
		return nil, false
	}
	return t, true
}

// leave ends a wait or gives a slot back, whatever t is at; the second time it does nothing.
func (q *queue) leave(t *ticket, now time.Time) {
	switch {
	case t.gone:
		return
	case t.elem != nil:
		q.waiting.Remove(t.elem)
		t.elem = nil
	default:
		q.inUse--
		q.observe(now.Sub(t.since))
		q.grant(now)
	}
	t.gone = true
}

func (q *queue) resize(slots, most int, now time.Time) {
	q.slots, q.max = slots, most
	q.grant(now)
}

func (q *queue) grant(now time.Time) {
	for q.inUse < q.slots && q.waiting.Len() > 0 {
		t := q.waiting.Remove(q.waiting.Front()).(*ticket)
		t.elem = nil
		q.give(t, now)
	}
}

func (q *queue) give(t *ticket, now time.Time) {
	q.inUse++
	t.since = now
	close(t.granted)
}

// observe keeps a moving average of how long slots are held.
func (q *queue) observe(d time.Duration) {
	if q.held == 0 {
		q.held = d
		return
	}
	q.held += (d - q.held) / 8
}

// retryAfter guesses when a newcomer would find the queue worked off: within what is sensible to tell a client.
func (q *queue) retryAfter() time.Duration {
	d := q.held * time.Duration(q.waiting.Len()+1) / time.Duration(q.slots)
	return min(max(d, time.Second), time.Minute)
}
