package balance

import (
	"context"
	"time"
)

// Slots bounds how much of one thing runs at once: a Scheduler of one worker. It is safe for concurrent use.
type Slots struct {
	scheduler *Scheduler
	worker    *Worker
}

// NewSlots makes the slots of one kind of work; less than 1 means 1.
func NewSlots(n int, l Limits, clock Clock) *Slots {
	s := &Slots{scheduler: New(Options{Limits: l, Clock: clock})}
	s.worker = s.set(n)
	return s
}

// Watch has f told of each Acquire: how long it waited, whether it had to, and its error. Called before the first of them.
func (s *Slots) Watch(f func(waited time.Duration, queued bool, err error)) { s.scheduler.watch = f }

// Acquire takes a slot for a caller, or waits for one. Release is called when the work is done; further calls of it do nothing.
// Waited is the time in the queue, also when there is an error; errors are those of Scheduler.Acquire.
func (s *Slots) Acquire(ctx context.Context, c Caller) (release func(), waited time.Duration, err error) {
	return s.AcquireOn(ctx, c, "")
}

// AcquireOn is Acquire for work on a subject, which counts for Limits.Each; "" is none.
func (s *Slots) AcquireOn(ctx context.Context, c Caller, subject string) (release func(), waited time.Duration, err error) {
	seat, waited, queued, err := s.scheduler.acquire(ctx, Work{Caller: c, Subject: subject})
	if f := s.scheduler.watch; f != nil {
		f(waited, queued, err)
	}
	if err != nil {
		return nil, waited, err
	}
	return func() { seat.Done(OK) }, waited, nil
}

// Resize changes the limits. Fewer slots take nothing from who holds one, a shorter queue sends nobody away, and a
// new wait limit is for those who come.
func (s *Slots) Resize(n int, l Limits) {
	s.scheduler.Limit(l)
	s.set(n)
	s.scheduler.Narrow(s.worker, n)
}

// set says how many slots there are, of a worker that is the same one each time.
func (s *Slots) set(n int) *Worker { return s.scheduler.Set([]Member{{Slots: max(n, 1)}})[0] }

// Narrow leaves only n of the slots in use for now, at least one; as many as there are, or more, ends that. It takes nothing from who holds
// one.
func (s *Slots) Narrow(n int) { s.scheduler.Narrow(s.worker, n) }

// InUse is how many slots are taken now.
func (s *Slots) InUse() int { return s.scheduler.InUse() }

// Queued is how many wait now.
func (s *Slots) Queued() int { return s.scheduler.Queued() }

// Limit is how many slots may be in use now: Size, unless it was narrowed.
func (s *Slots) Limit() int { return s.scheduler.State(s.worker).Used }

// Size is how many slots there are.
func (s *Slots) Size() int { return s.scheduler.State(s.worker).Slots }
