package balance

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Member describes a worker.
type Member struct {
	Name   string
	Weight int // share of the work among those that are busy; less than 1 means 1
	// Ready tells why it should not be given work; nil, or nil as its answer, if it should. Usable tells whether it can be all the same if
	// no other is ready; nil: no. Both answer from memory and at once: they are asked while a lock is held.
	Ready  func() error
	Usable func() bool
}

// maxWeight bounds weights, so that products with counts stay far from an overflow.
const maxWeight = 1 << 20

// restAfterFailure is how long a worker that failed comes after all others. One that fails at once never has anything in flight: it would
// be given all the work.
const restAfterFailure = 250 * time.Millisecond

// Worker is one of those that work is assigned to. It has its counts for as long as somebody holds it, whether it is still a member or
// not.
type Worker struct {
	name string

	// Guarded by the mutex of its Workers.
	weight   int64
	ready    func() error
	usable   func() bool
	inFlight int64
	draining bool
	last     uint64    // the turn in which it was given work
	rests    time.Time // after a failure: until when
}

// Reason says why a worker was the one.
type Reason string

const (
	Only      Reason = "only"       // no other could be given the work
	Free      Reason = "free"       // it had nothing in flight
	LeastBusy Reason = "least_busy" // all were busy, it the least for its weight
)

// Workers assigns work at once, and without a queue, to the worker that is the least busy: to one that has nothing in flight, else to the
// one with the fewest in flight for its weight, and among equals to the one that waits the longest. A worker that is draining is given
// nothing. One that has just failed comes after all others, and then come those that are not ready but usable.
//
// Each assignment looks at all candidates. There are few (the replicas of a repository), a look costs some nanoseconds, and which of
// them are ready and may be taken differs from one request to the next: no heap would stay in order. The lock is held for that look
// and never while work runs. Safe for concurrent use.
type Workers struct {
	now func() time.Time

	mu      sync.Mutex
	turn    uint64 // counts assignments: tells who was last given work, where a clock could say "at the same time"
	members map[string]*Worker
}

// NewWorkers makes an empty set. A nil now is the real clock.
func NewWorkers(now func() time.Time) *Workers {
	if now == nil {
		now = time.Now
	}
	return &Workers{now: now, members: map[string]*Worker{}}
}

// Set says who the workers are and returns them in the same order. Names differ. One that is a member already keeps its counts and its
// drain mark. One that is left out runs what it has to its end; if it comes again, it is a new one.
func (w *Workers) Set(members []Member) []*Worker {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.members
	w.members = make(map[string]*Worker, len(members))
	list := make([]*Worker, len(members))
	for i, m := range members {
		worker := before[m.Name]
		if worker == nil {
			worker = &Worker{name: m.Name}
		}
		worker.weight, worker.ready, worker.usable = int64(min(max(m.Weight, 1), maxWeight)), m.Ready, m.Usable
		w.members[m.Name], list[i] = worker, worker
	}
	return list
}

// Assign gives one piece of work to one of the candidates, unless tried has its name, and returns its index; -1 if there is none that
// can be given it. Whoever was assigned work calls Done.
func (w *Workers) Assign(candidates []*Worker, tried []string) (int, Reason) {
	now := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	best, bestRank, could := -1, unable, 0
	for i, c := range candidates {
		rank := c.rank(now)
		if rank == unable || slices.Contains(tried, c.name) {
			continue
		}
		could++
		if rank < bestRank || rank == bestRank && c.before(candidates[best]) {
			best, bestRank = i, rank
		}
	}
	if best < 0 {
		return -1, ""
	}
	chosen, reason := candidates[best], LeastBusy
	switch {
	case could == 1:
		reason = Only
	case chosen.inFlight == 0:
		reason = Free
	}
	w.turn++
	chosen.last = w.turn
	chosen.inFlight++
	return best, reason
}

// The ranks of workers: one of a lower rank is given work first, however busy it is.
const (
	able     = iota
	resting  // after a failure
	unsteady // not ready, but usable
	unable
)

func (a *Worker) rank(now time.Time) int {
	switch {
	case a.draining:
		return unable
	case a.ready == nil || a.ready() == nil:
		if now.Before(a.rests) {
			return resting
		}
		return able
	case a.usable != nil && a.usable():
		return unsteady
	}
	return unable
}

// before tells whether work goes to a rather than to b of the same rank.
func (a *Worker) before(b *Worker) bool {
	if x, y := a.inFlight*b.weight, b.inFlight*a.weight; x != y {
		return x < y
	}
	return a.last < b.last
}

// Done ends what Assign began. Failed says that the worker, and not the work, was the cause of a failure.
func (w *Workers) Done(worker *Worker, failed bool) {
	now := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	worker.inFlight--
	if failed {
		worker.rests = now.Add(restAfterFailure)
	}
}

// Drain keeps new work from a worker, or ends that. What it has runs on. Both are done at once and may be repeated; an unknown name is an
// error of kind NotFound that says which there are.
func (w *Workers) Drain(name string, draining bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	worker := w.members[name]
	if worker == nil {
		known := make([]string, 0, len(w.members))
		for name := range w.members {
			known = append(known, name)
		}
		slices.Sort(known)
		if len(known) == 0 {
			return fault.New(fault.NotFound, "there is no %.80q, nor any other", name)
		}
		return fault.New(fault.NotFound, "there is no %.80q; there are %s", name, strings.Join(known, ", "))
	}
	worker.draining = draining
	return nil
}

// State is what is known of a worker.
type State struct {
	Name     string
	Weight   int
	InFlight int
	Draining bool
	Down     error // why it is not ready; nil if it is
}

// State tells how a worker is now.
func (w *Workers) State(worker *Worker) State {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := State{Name: worker.name, Weight: int(worker.weight), InFlight: int(worker.inFlight), Draining: worker.draining}
	if worker.ready != nil {
		s.Down = worker.ready()
	}
	return s
}
