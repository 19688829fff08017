package balance

import "time"

// Work is what a worker is wanted for.
type Work struct {
	Caller  Caller
	Subject string // what it is on, for Limits.Each; "": nothing
	Route   string // work of one route takes about as long; "": as all work does
	Fast    bool   // it may have the slots in reserve
	// Among are the workers that can have it; nil: all. It is not changed while the work waits. To choose among some looks at each of them, among all it does not.
	Among  []*Worker
	Tried  []string // names of those that are not to have it
	NoWait bool     // if there is no free slot it is refused
	Aside  bool     // it tells nothing of how long work takes, as checks of workers do not
}

// picky tells whether not all workers can have it.
func (w *Work) picky() bool { return w.Among != nil || len(w.Tried) > 0 }

// Outcome says how work ended.
type Outcome int

const (
	OK     Outcome = iota
	Failed         // by the worker's fault
	Cut            // before its end, as by its client: it says nothing about how long work takes
)

// Ticket is one piece of work: waiting, then at a worker or refused, then gone.
type Ticket struct {
	Work
	worker *Worker
	reason Reason
	shared bool
	err    error // it was refused
	gone   bool

	arrival        uint64
	came           time.Duration
	since          time.Duration // when it got its worker
	charged        time.Duration // for it
	end            time.Duration // when it is expected to end
	spent          spent         // by its worker when it began
	atEnd          int           // its place among its worker's
	line           *line         // where it waits
	older, younger *Ticket       // there

	answered chan struct{} // of a Scheduler: closed by its answer
}

// Worker is the one that has the work; nil: it waits, or was refused.
func (t *Ticket) Worker() *Worker { return t.worker }

// Err tells why it was refused.
func (t *Ticket) Err() error { return t.err }

// Reason tells why the worker was the one.
func (t *Ticket) Reason() Reason { return t.reason }

// Shared tells whether the worker had other work while another one, that could have had this, had none. It never is.
func (t *Ticket) Shared() bool { return t.shared }

// Waited is the time in the queue.
func (t *Ticket) Waited() time.Duration { return max(t.since-t.came, 0) }
