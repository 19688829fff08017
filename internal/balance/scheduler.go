package balance

import (
	"context"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Limits bound what waits, and who has how much of the slots.
type Limits struct {
	Queue int // how many may wait; 0 refuses whoever finds no free slot
	// Anonymous is the part of the slots that goes to anonymous callers together, while others wait too: from 0 to 1, both excluded. 0: a half.
	Anonymous float64
	Wait      time.Duration // how long one may wait; 0 is as long as its context lives
	// Each is how many slots work on the same subject may have while there is work on others too, or was within the last minute: less than there are, so that
	// one subject cannot keep all others waiting. Alone it may have all. 0, and a single slot: no bound.
	Each int
	// Reserve is how many of all slots only Fast work has; one is left for the rest. AutoReserve: one, where there are four or more.
	Reserve int
}

// AutoReserve is for Limits.Reserve: where slots are few, one of them is more than fast work is worth.
const AutoReserve = -1

// Clock tells the time; tests bring their own. The zero Clock is the real one.
type Clock struct {
	Now func() time.Time
	// AfterFunc calls f in a goroutine of its own once d has passed, unless it is stopped before.
	AfterFunc func(d time.Duration, f func()) (stop func() bool)
}

// Options make a Scheduler.
type Options struct {
	Limits
	Clock Clock
	// Watch, unless nil, is told of each Acquire: how long it waited, whether it had to, and its error.
	Watch func(waited time.Duration, queued bool, err error)
}

// Scheduler gives work to workers that are alike: it is the only one in front of them. Safe for concurrent use. Its lock is held for a choice, never
// while work runs or waits.
type Scheduler struct {
	clock Clock
	began time.Time
	watch func(waited time.Duration, queued bool, err error)

	mu    sync.Mutex
	core  *Core
	alarm time.Duration // when the timer calls Wake; 0: there is none
	stop  func() bool   // the timer
}

// New makes a Scheduler without workers.
func New(o Options) *Scheduler {
	if o.Clock.Now == nil {
		o.Clock.Now = time.Now
	}
	if o.Clock.AfterFunc == nil {
		o.Clock.AfterFunc = func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }
	}
	s := &Scheduler{clock: o.Clock, began: o.Clock.Now(), watch: o.Watch}
	s.core = NewCore(o.Limits, func(t *Ticket) { close(t.answered) })
	return s
}

// now is the time of the core. Whoever tells it the core holds the lock, so that it never goes back there.
func (s *Scheduler) now() time.Duration { return s.clock.Now().Sub(s.began) }

// do has the core do something.
func (s *Scheduler) do(f func(c *Core, now time.Duration)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.core, s.now())
	s.arm()
}

// arm sets the timer for what time alone changes for those who wait. The lock is held.
func (s *Scheduler) arm() {
	now := s.now()
	at, ok := s.core.Next(now)
	if ok && s.alarm == at || !ok && s.alarm == 0 {
		return
	}
	if s.alarm != 0 {
		s.stop()
	}
	if s.alarm = 0; ok {
		s.alarm = at
		s.stop = s.clock.AfterFunc(max(at-now, 0), func() {
			s.do(func(c *Core, now time.Duration) {
				if s.alarm == at {
					s.alarm = 0
				}
				c.Wake(now)
			})
		})
	}
}

// Seat is a place at a worker. Who has it calls Done.
type Seat struct {
	scheduler *Scheduler
	ticket    *Ticket
	waited    time.Duration
}

// Worker is whose place it is.
func (s *Seat) Worker() *Worker { return s.ticket.worker }

// Reason says why that worker was the one.
func (s *Seat) Reason() Reason { return s.ticket.reason }

// Waited is the time in the queue.
func (s *Seat) Waited() time.Duration { return s.waited }

// Shared tells whether the worker had other work while another one, that could have had this, had none. It never is; that is counted to show it.
func (s *Seat) Shared() bool { return s.ticket.shared }

// Done gives the place back. Further calls do nothing.
func (s *Seat) Done(how Outcome) {
	s.scheduler.mu.Lock()
	defer s.scheduler.mu.Unlock()
	s.scheduler.core.Leave(s.scheduler.now(), s.ticket, how)
	s.scheduler.arm()
}

// Hand gives the place back, as Done does, and takes it at once for other work, before all that waits. Nil: the worker is given no more.
func (s *Seat) Hand(how Outcome, w Work) *Seat {
	s.scheduler.mu.Lock()
	defer s.scheduler.mu.Unlock()
	t := s.scheduler.core.Hand(s.scheduler.now(), s.ticket, how, w)
	s.scheduler.arm()
	if t == nil {
		return nil
	}
	return &Seat{scheduler: s.scheduler, ticket: t}
}

// Acquire takes a place at a worker, or waits for one. The errors are fault.Exhausted if the queue is full, or became so and others had less in it, or the wait
// is too long, or plainly would be, which is said at once; fault.Share, if it is the caller's own work that it would wait for; Unavailable if there is nobody
// that could ever have the work, as when all candidates drain or are down; Cancelled or Deadline if ctx ended first.
func (s *Scheduler) Acquire(ctx context.Context, w Work) (*Seat, error) {
	seat, waited, queued, err := s.acquire(ctx, w)
	if s.watch != nil {
		s.watch(waited, queued, err)
	}
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
		s.arm()
		s.mu.Unlock()
		if err != nil {
			return nil, 0, false, err
		}
		return &Seat{scheduler: s, ticket: t}, 0, false, nil
	}
	t.answered = make(chan struct{})
	limit, retry := s.core.limits.Wait, s.core.retryAfter()
	s.arm()
	s.mu.Unlock()

	var expired chan struct{}
	if limit > 0 {
		expired = make(chan struct{})
		stop := s.clock.AfterFunc(limit, func() { close(expired) })
		defer stop()
	}
	select {
	case <-t.answered:
		return s.answered(t, began)
	case <-ctx.Done():
		err = fault.Wrap(fault.KindOf(ctx.Err()), "gave up while waiting for a slot", ctx.Err())
	case <-expired:
	}
	s.do(func(c *Core, now time.Duration) {
		waited = now - began
		if err == nil {
			err = c.Expire(now, t, retry)
			return
		}
		c.Leave(now, t, Cut) // a slot granted meanwhile goes to the next in the queue
	})
	return nil, waited, true, err
}

func (s *Scheduler) answered(t *Ticket, began time.Duration) (*Seat, time.Duration, bool, error) {
	waited := s.now() - began
	if t.err != nil {
		return nil, waited, true, t.err
	}
	return &Seat{scheduler: s, ticket: t, waited: waited}, waited, true, nil
}

// Set says who the workers are and returns them in the same order. Names differ. One that is a member already keeps its counts and its
// drain mark. One that is left out runs what it has to its end, and is given nothing more; if it comes again, it is a new one.
func (s *Scheduler) Set(members []Member) (workers []*Worker) {
	s.do(func(c *Core, now time.Duration) { workers = c.Set(now, members) })
	return workers
}

// Limit changes the limits. A shorter queue sends nobody away, and a new wait limit is for those who come.
func (s *Scheduler) Limit(l Limits) { s.do(func(c *Core, now time.Duration) { c.Limit(now, l) }) }

// Drain keeps new work from a worker, or ends that. What it has runs on. Both are done at once and may be repeated; an unknown name is an
// error of kind NotFound that says which there are.
func (s *Scheduler) Drain(name string, draining bool) (err error) {
	s.do(func(c *Core, now time.Duration) { err = c.Drain(now, name, draining) })
	return err
}

// Narrow leaves only n of a worker's slots in use for now, at least one; as many as there are, or more, ends that. It takes nothing from what
// has one.
func (s *Scheduler) Narrow(w *Worker, n int) {
	s.do(func(c *Core, now time.Duration) { c.Narrow(now, w, n) })
}

// Changed has all workers asked whether they are ready, for those who wait.
func (s *Scheduler) Changed() { s.do((*Core).Changed) }

// State tells how a worker is now.
func (s *Scheduler) State(w *Worker) State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.State(w)
}

// InUse is how much runs now.
func (s *Scheduler) InUse() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.InUse()
}

// Queued is how much waits now.
func (s *Scheduler) Queued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.Queued()
}

// Used is how many slots may be in use now, of the workers that have a bound and can be given work.
func (s *Scheduler) Used() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.Used()
}
