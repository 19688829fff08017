package balance

import (
	"context"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Limits bound the queue and the shares of the slots.
type Limits struct {
	Queue int // maximum number of waiting pieces of work; 0: no queue
	// Anonymous is the part of the slots for all anonymous callers together while others wait, between 0 and 1,
	// exclusive. 0 means a half.
	Anonymous float64
	Wait      time.Duration // maximum time in the queue; 0: until the context ends
	// Each is the maximum number of slots for work on one subject. It applies if work on other subjects exists or arrived
	// within the last minute. One slot always remains for other subjects. 0 means no maximum.
	Each int
}

// Clock is a source of time. The zero Clock is the real one.
type Clock struct {
	Now func() time.Time
	// AfterFunc calls f in a new goroutine after d, unless stop is called before.
	AfterFunc func(d time.Duration, f func()) (stop func() bool)
}

// Options make a Scheduler.
type Options struct {
	Limits
	Clock Clock
}

// Scheduler assigns work to workers that can all do it. It must be the only one that does. Safe for concurrent use.
type Scheduler struct {
	clock Clock
	began time.Time

	mu     sync.Mutex
	core   *Core
	wakeAt time.Duration // when the timer calls Core.Wake; 0: there is no timer
	stop   func() bool   // stops the timer
}

// New returns a Scheduler without workers.
func New(o Options) *Scheduler {
	if o.Clock.Now == nil {
		o.Clock.Now = time.Now
	}
	if o.Clock.AfterFunc == nil {
		o.Clock.AfterFunc = func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }
	}
	s := &Scheduler{clock: o.Clock, began: o.Clock.Now()}
	s.core = NewCore(o.Limits, func(t *Ticket) { close(t.answered) })
	return s
}

// now returns the time of the core. Callers that pass it to the core hold the lock.
func (s *Scheduler) now() time.Duration { return s.clock.Now().Sub(s.began) }

// do calls f with the lock held, and then sets the timer for the core's next wake.
func (s *Scheduler) do(f func(c *Core, now time.Duration)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.core, s.now())
	s.setTimer()
}

func (s *Scheduler) setTimer() {
	now := s.now()
	at, _ := s.core.Next(now)
	if s.wakeAt == at {
		return
	}
	if s.wakeAt != 0 {
		s.stop()
	}
	if s.wakeAt = at; at == 0 {
		return
	}
	s.stop = s.clock.AfterFunc(max(at-now, 0), func() {
		s.do(func(c *Core, now time.Duration) {
			if s.wakeAt == at {
				s.wakeAt = 0
			}
			c.Wake(now)
		})
	})
}

// Seat is a slot of a worker. Its holder calls Done.
type Seat struct {
	scheduler *Scheduler
	ticket    *Ticket
}

// Worker returns the worker.
func (s *Seat) Worker() *Worker { return s.ticket.worker }

// Reason returns why the worker was chosen.
func (s *Seat) Reason() Reason { return s.ticket.reason }

// Waited returns the time in the queue.
func (s *Seat) Waited() time.Duration { return s.ticket.Waited() }

// Done releases the slot. Further calls do nothing.
func (s *Seat) Done(how Outcome) {
	s.scheduler.do(func(c *Core, now time.Duration) { c.Leave(now, s.ticket, how) })
}

// Acquire takes a slot of a worker, or waits for one. The error has one of these kinds:
//
//   - Exhausted: the queue is full, or the wait is too long. It is a CallerLimit if other work of the same caller is
//     the cause.
//   - Unavailable: no worker can be given the work.
//   - Cancelled or Deadline: ctx ended first.
func (s *Scheduler) Acquire(ctx context.Context, w Work) (*Seat, error) {
	seat, _, _, err := s.acquire(ctx, w)
	return seat, err
}

func (s *Scheduler) acquire(ctx context.Context, w Work) (seat *Seat, waited time.Duration, queued bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, false, fault.Wrap(fault.KindOf(err), "gave up before waiting for a slot", err)
	}
	s.mu.Lock()
	began := s.now()
	t, err := s.core.Enter(began, w)
	if err != nil || t.worker != nil {
		s.setTimer()
		s.mu.Unlock()
		if err != nil {
			return nil, 0, false, err
		}
		return &Seat{s, t}, 0, false, nil
	}
	t.answered = make(chan struct{})
	limit, retry := s.core.limits.Wait, s.core.retryAfter(began)
	s.setTimer()
	s.mu.Unlock()

	var expired chan struct{}
	if limit > 0 && !w.Check {
		expired = make(chan struct{})
		stop := s.clock.AfterFunc(limit, func() { close(expired) })
		defer stop()
	}
	select {
	case <-t.answered:
		waited = s.now() - began
		if t.err != nil {
			return nil, waited, true, t.err
		}
		return &Seat{s, t}, waited, true, nil
	case <-ctx.Done():
		err = fault.Wrap(fault.KindOf(ctx.Err()), "gave up while waiting for a slot", ctx.Err())
	case <-expired:
	}
	s.do(func(c *Core, now time.Duration) { // a slot that was assigned meanwhile is given to the next ticket
		waited = now - began
		if err == nil {
			err = c.Expire(now, t, retry)
			return
		}
		c.Leave(now, t, Cut)
	})
	return nil, waited, true, err
}

// Set replaces the workers and returns them in the same order. Names must be unique. A worker with the name of a
// previous one keeps its counts and its drain mark. A removed worker finishes its work and is given no more. If members
// is empty, all waiting work is refused.
func (s *Scheduler) Set(members []Member) (workers []*Worker) {
	s.do(func(c *Core, now time.Duration) { workers = c.Set(now, members) })
	return workers
}

// Limit replaces the limits. A shorter queue evicts no work, and a new wait limit applies to later work.
func (s *Scheduler) Limit(l Limits) { s.do(func(c *Core, now time.Duration) { c.Limit(now, l) }) }

// Drain starts or ends the drain of a worker: it is given no work while it drains, and finishes what it has. The error
// for an unknown name is of kind NotFound and lists the known names.
func (s *Scheduler) Drain(name string, draining bool) (err error) {
	s.do(func(c *Core, now time.Duration) { err = c.Drain(now, name, draining) })
	return err
}

// Narrow restricts a worker to n of its slots, at least one. With n of all slots or more, the restriction ends. Work in
// flight stays.
func (s *Scheduler) Narrow(w *Worker, n int) {
	s.do(func(c *Core, now time.Duration) { c.Narrow(now, w, n) })
}

// Changed assigns waiting work after the readiness of a worker has changed.
func (s *Scheduler) Changed() { s.do((*Core).Wake) }

// State describes a worker.
func (s *Scheduler) State(w *Worker) State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.State(w)
}

// InUse returns how many pieces of work have a slot.
func (s *Scheduler) InUse() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.inUse
}

// Queued returns how many pieces of work wait.
func (s *Scheduler) Queued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.core.queue.waiting)
}

// QueuedChecks returns how many health checks wait.
func (s *Scheduler) QueuedChecks() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.core.queue.checks)
}
