package balance

import "time"

// Work describes what a worker is needed for.
type Work struct {
	Caller  Caller
	Subject string // what the work is on, for Limits.Each; empty: nothing
	// Among lists the workers that can do the work. Nil means all of them. It must not change while the work waits.
	Among []*Worker
	// Ordered prefers the first of Among to the least busy, if both are ready.
	Ordered bool
	Tried   []string // names of workers that must not be given the work
	NoWait  bool     // refuse the work if no slot is free
	// Check marks a health check. It is served before all waiting work. It counts neither for a caller nor against the
	// queue's length.
	Check bool
}

// isRestricted reports whether some workers cannot do the work.
func (w *Work) isRestricted() bool { return w.Among != nil || len(w.Tried) > 0 }

// Outcome is how work ended.
type Outcome int

// The outcomes.
const (
	OK     Outcome = iota
	Failed         // because of the worker
	Cut            // before its end, because of the caller
)

// Ticket is one piece of work: waiting, assigned or refused, and then gone.
type Ticket struct {
	Work
	worker *Worker
	reason Reason
	err    error // why the work was refused
	gone   bool

	account *account // of its caller; nil for a check
	arrival uint64
	came    time.Duration
	since   time.Duration // when it was assigned
	charged time.Duration // to its account

	answered chan struct{} // closed by the answer; used by Scheduler
}

// Worker returns the worker that has the work. Nil means that the work waits, or was refused.
func (t *Ticket) Worker() *Worker { return t.worker }

// Waited returns the time in the queue.
func (t *Ticket) Waited() time.Duration { return max(t.since-t.came, 0) }
