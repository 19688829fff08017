package balance

import (
	"context"
	"time"
)

// Slots bounds how much of one kind of work runs at the same time. It is a Scheduler of one worker. Safe for concurrent
// use.
type Slots struct {
	scheduler *Scheduler
	worker    *Worker
	watch     func(waited time.Duration, queued bool, err error)
}

// NewSlots returns n slots for one kind of work; less than 1 means 1.
func NewSlots(n int, l Limits, clock Clock) *Slots {
	s := &Slots{scheduler: New(Options{Limits: l, Clock: clock})}
	s.worker = s.set(n)
	return s
}

// Watch has each Acquire call f with its time in the queue, whether it had to wait, and its error. Call Watch before
// the first Acquire.
func (s *Slots) Watch(f func(waited time.Duration, queued bool, err error)) { s.watch = f }

// Acquire takes a slot for a caller, or waits for one. Call release when the work is done; further calls of it do
// nothing. waited is the time in the queue, also after an error. The errors are those of Scheduler.Acquire.
func (s *Slots) Acquire(ctx context.Context, c Caller) (release func(), waited time.Duration, err error) {
	return s.AcquireOn(ctx, c, "")
}

// AcquireOn is Acquire for work on a subject, for Limits.Each.
func (s *Slots) AcquireOn(ctx context.Context, c Caller, subject string) (release func(), waited time.Duration,
	err error) {
	seat, waited, queued, err := s.scheduler.acquire(ctx, Work{Caller: c, Subject: subject})
	if s.watch != nil {
		s.watch(waited, queued, err)
	}
	if err != nil {
		return nil, waited, err
	}
	return func() { seat.Done(OK) }, waited, nil
}

// Resize changes the number of slots and the limits. Work in flight keeps its slots, a shorter queue evicts no work,
// and a new wait limit applies to later work.
func (s *Slots) Resize(n int, l Limits) {
	s.scheduler.Limit(l)
	s.set(n)
	s.scheduler.Narrow(s.worker, n)
}

// set sets the number of slots. The worker is the same one each time.
func (s *Slots) set(n int) *Worker { return s.scheduler.Set([]Member{{Slots: max(n, 1)}})[0] }

// Narrow restricts the use to n of the slots, at least one. With n of all slots or more, the restriction ends. Work in
// flight keeps its slots.
func (s *Slots) Narrow(n int) { s.scheduler.Narrow(s.worker, n) }

// InUse returns how many slots are taken.
func (s *Slots) InUse() int { return s.scheduler.InUse() }

// Queued returns how many pieces of work wait.
func (s *Slots) Queued() int { return s.scheduler.Queued() }

// Limit returns how many slots may be taken now. It is Size, unless Narrow restricts it.
func (s *Slots) Limit() int { return s.scheduler.State(s.worker).Used }

// Size returns how many slots there are.
func (s *Slots) Size() int { return s.scheduler.State(s.worker).Slots }
