// Package balance hands out what is free: slots, which bound how much of one thing runs at once, and workers, of which the least busy is
// given work.
//
// A free slot is taken at once. When none is free, callers wait in one queue, first come, first served; the queue's length and
// the time in it are bounded, and who finds no place is told when to come back instead of being left to hang. Workers have no
// queue: whoever is ready takes more, a free one first.
package balance

import (
	"context"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Limits bound a Slots.
type Limits struct {
	Slots int           // how many run at once; less than 1 means 1
	Queue int           // how many may wait; 0 refuses whoever finds no free slot
	Wait  time.Duration // how long one may wait; 0 is as long as its context lives
}

// Clock tells the time; tests bring their own. The zero Clock is the real one.
type Clock struct {
	Now func() time.Time
	// After sends once d has passed; stop gives up its timer.
	After func(d time.Duration) (c <-chan time.Time, stop func())
}

// Slots bounds how much of one thing runs at once. It is safe for concurrent use.
type Slots struct {
	clock Clock

	mu   sync.Mutex
	wait time.Duration
	q    queue
}

// NewSlots makes the slots of one kind of work.
func NewSlots(l Limits, clock Clock) *Slots {
	if clock.Now == nil {
		clock.Now = time.Now
	}
	if clock.After == nil {
		clock.After = func(d time.Duration) (<-chan time.Time, func()) {
			t := time.NewTimer(d)
			return t.C, func() { t.Stop() }
		}
	}
	s := &Slots{clock: clock}
	s.Resize(l)
	return s
}

// Acquire takes a slot, or waits for one. The caller calls release when its work is done; further calls of it do nothing.
// Waited is the time in the queue, also when there is an error: fault.Exhausted if the queue is full or the wait too
// long, fault.Cancelled or fault.Deadline if ctx ended first.
func (s *Slots) Acquire(ctx context.Context) (release func(), waited time.Duration, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, fault.Wrap(fault.KindOf(err), "gave up before waiting for a slot", err)
	}
	began := s.clock.Now()
	s.mu.Lock()
	t, ok := s.q.enter(began)
	retry, limit := s.q.retryAfter(), s.wait
	s.mu.Unlock()
	if !ok {
		return nil, 0, fault.Retry(fault.Exhausted, retry, "too many requests of this kind are waiting already")
	}
	select {
	case <-t.granted:
		return s.releaser(t), 0, nil
	default:
	}
	var expired <-chan time.Time
	if limit > 0 {
		c, stop := s.clock.After(limit)
		defer stop()
		expired = c
	}
	select {
	case <-t.granted:
		return s.releaser(t), s.clock.Now().Sub(began), nil
	case <-ctx.Done():
		err = fault.Wrap(fault.KindOf(ctx.Err()), "gave up while waiting for a slot", ctx.Err())
	case <-expired:
		err = fault.Retry(fault.Exhausted, retry, "no slot became free in time")
	}
	now := s.clock.Now()
	s.mu.Lock()
	s.q.leave(t, now) // a slot granted meanwhile goes to the next in the queue
	s.mu.Unlock()
	return nil, now.Sub(began), err
}

func (s *Slots) releaser(t *ticket) func() {
	return sync.OnceFunc(func() {
		now := s.clock.Now()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.q.leave(t, now)
	})
}

// Resize changes the limits. Fewer slots take nothing from who holds one, a shorter queue sends nobody away, and a
// new wait limit is for those who come.
func (s *Slots) Resize(l Limits) {
	now := s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wait = l.Wait
	s.q.resize(max(l.Slots, 1), max(l.Queue, 0), now)
}

// InUse is how many slots are taken now.
func (s *Slots) InUse() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.q.inUse
}

// Queued is how many wait now.
func (s *Slots) Queued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.q.waiting.Len()
}

// Size is how many slots there are.
func (s *Slots) Size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.q.slots
}
