// Package balance hands out what is free: slots, which bound how much of one thing runs at once, and workers, of which the least busy is
// given work.
//
// A free slot is taken at once. When none is free, work waits; callers take turns, by the time for which they have held slots, and what is one
// caller's goes first come, first served. The queue's length and the time in it are bounded, and who finds no place is told when to come
// back instead of being left to hang. Workers have no queue: whoever is ready takes more, a free one first.
package balance

import (
	"context"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Limits bound a Slots.
type Limits struct {
	Slots int // how many run at once; less than 1 means 1
	Queue int // how many may wait; 0 refuses whoever finds no free slot
	// Anonymous is the part of the slots that goes to anonymous callers together, while others wait too: from 0 to 1, both excluded. 0: a half.
	Anonymous float64
	Wait      time.Duration // how long one may wait; 0 is as long as its context lives
	// Each is how many slots work on the same subject may have while there is work on others too, or was within the last minute: less than Slots, so that
	// one subject cannot keep all others waiting. Alone it may have all. 0, and a single slot: no bound.
	Each int
}

// Clock tells the time; tests bring their own. The zero Clock is the real one.
type Clock struct {
	Now func() time.Time
	// After sends once d has passed; stop gives up its timer.
	After func(d time.Duration) (c <-chan time.Time, stop func())
}

// Slots bounds how much of one thing runs at once. It is safe for concurrent use.
type Slots struct {
	clock   Clock
	watcher func(waited time.Duration, queued bool, err error) // nil: nobody

	mu     sync.Mutex
	limits Limits
	most   int // slots that there may be now, of limits.Slots
	q      queue
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
	s := &Slots{clock: clock, q: newQueue()}
	s.Resize(l)
	return s
}

// Watch has f told of each Acquire: how long it waited, whether it had to, and its error. Called before the first of them.
func (s *Slots) Watch(f func(waited time.Duration, queued bool, err error)) { s.watcher = f }

// Acquire takes a slot for a caller, or waits for one. Release is called when the work is done; further calls of it do nothing.
// Waited is the time in the queue, also when there is an error: fault.Exhausted if the queue is full, or became so and others had less in it,
// or the wait is too long, or plainly would be, which is said at once; fault.Share, if it is the caller's own work that it would wait for.
// fault.Cancelled or fault.Deadline if ctx ended first.
func (s *Slots) Acquire(ctx context.Context, c Caller) (release func(), waited time.Duration, err error) {
	return s.AcquireOn(ctx, c, "")
}

// AcquireOn is Acquire for work on a subject, which counts for Limits.Each; "" is none.
func (s *Slots) AcquireOn(ctx context.Context, c Caller, subject string) (release func(), waited time.Duration, err error) {
	release, waited, queued, err := s.acquire(ctx, c, subject)
	if s.watcher != nil {
		s.watcher(waited, queued, err)
	}
	return release, waited, err
}

func (s *Slots) acquire(ctx context.Context, c Caller, subject string) (release func(), waited time.Duration, queued bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, false, fault.Wrap(fault.KindOf(err), "gave up before waiting for a slot", err)
	}
	began := s.clock.Now()
	s.mu.Lock()
	retry, limit := s.q.retryAfter(), s.limits.Wait
	wait, other := s.q.expect(c, s.limits.Slots, began) // with all slots: they may not stay narrow
	if limit > 0 && wait > limit {
		s.mu.Unlock()
		return nil, 0, false, exhausted(c != "" && other <= limit, retry, "no slot would become free in time; try again")
	}
	t := s.q.enter(c, subject, began)
	share := s.q.crowds(c)
	s.mu.Unlock()
	if t == nil {
		return nil, 0, false, exhausted(share, retry, full)
	}
	select {
	case <-t.answered: // refused it cannot be: it came last
		return s.releaser(t), 0, false, nil
	default:
	}
	var expired <-chan time.Time
	if limit > 0 {
		after, stop := s.clock.After(limit)
		defer stop()
		expired = after
	}
	select {
	case <-t.answered:
		waited = s.clock.Now().Sub(began)
		if t.refused {
			return nil, waited, true, exhausted(t.share, retry, full)
		}
		return s.releaser(t), waited, true, nil
	case <-ctx.Done():
		err = fault.Wrap(fault.KindOf(ctx.Err()), "gave up while waiting for a slot", ctx.Err())
	case <-expired:
	}
	now := s.clock.Now()
	s.mu.Lock()
	share = s.q.share(c)
	s.q.leave(t, now) // a slot granted meanwhile goes to the next in the queue
	s.mu.Unlock()
	if err == nil {
		err = exhausted(share, retry, "no slot became free in time")
	}
	return nil, now.Sub(began), true, err
}

const full = "too many requests of this kind are waiting already"

func exhausted(share bool, retry time.Duration, message string) error {
	if share {
		return fault.Share(retry, "%s", message)
	}
	return fault.Retry(fault.Exhausted, retry, "%s", message)
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
	l.Slots = max(l.Slots, 1)
	s.limits, s.most = l, l.Slots
	s.resize(now)
}

func (s *Slots) resize(now time.Time) {
	s.q.resize(s.most, max(s.limits.Queue, 0), s.limits.Anonymous, s.limits.Each, now)
}

// Narrow leaves only n of the slots in use for now, at least one; as many as there are, or more, ends that. It takes nothing from who holds
// one.
func (s *Slots) Narrow(n int) {
	now := s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if n = min(max(n, 1), s.limits.Slots); n != s.most {
		s.most = n
		s.resize(now)
	}
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
	return s.q.waiting
}

// Limit is how many slots may be in use now: Size, unless it was narrowed.
func (s *Slots) Limit() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

// Size is how many slots there are.
func (s *Slots) Size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limits.Slots
}
