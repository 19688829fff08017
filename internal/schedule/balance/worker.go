package balance

import (
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Member describes a worker.
type Member struct {
	Name   string
	Weight int // share of the work among busy workers, at least 1
	Slots  int // pieces of work at the same time; 0: no limit
	// Ready returns why the worker should not be given work, or nil. Nil means that it is always ready. Usable reports
	// whether a worker that is not ready may be given work when no other is ready. Nil means no. Both are called with a
	// lock held and must not block. Call Scheduler.Changed when their results change while work waits.
	Ready  func() error
	Usable func() bool
}

const (
	maxWeight = 1 << 20
	maxSlots  = 1 << 20
	// restAfterFailure is how long a worker that failed is assigned work only if no other has a free slot. A worker
	// that fails at once never has anything in flight. Without a rest it would be given all the work.
	restAfterFailure = 250 * time.Millisecond
)

// Worker is a member of a Core. It keeps its counts also after it was removed.
type Worker struct {
	member     Member
	isRemoved  bool
	isDraining bool
	inFlight   int
	narrowed   int           // number of usable slots, set by Narrow; 0: all
	last       uint64        // the turn of its last assignment
	restsUntil time.Duration // after a failure
}

// Name returns the name of the Member.
func (w *Worker) Name() string { return w.member.Name }

// slots returns the number of usable slots; 0: no limit.
func (w *Worker) slots() int {
	if w.narrowed > 0 {
		return min(w.narrowed, w.member.Slots)
	}
	return w.member.Slots
}

// load is the work in flight for the worker's slots and weight.
func (w *Worker) load() float64 {
	return float64(w.inFlight) / (float64(w.member.Weight) * float64(max(w.member.Slots, 1)))
}

// down returns why the worker is not ready, or nil.
func (w *Worker) down() error {
	if w.member.Ready == nil {
		return nil
	}
	return w.member.Ready()
}

// rank is a class of workers. Work goes to the lowest rank first, whatever the load.
type rank int

const (
	ready       rank = iota
	resting          // after a failure
	full             // ready, without a free slot
	lastResort       // usable although it is not ready
	fullResort       // the same, without a free slot
	unavailable      // cannot be given work
)

// isOpen reports whether a worker of this rank can be given work now.
func (r rank) isOpen() bool { return r <= resting || r == lastResort }

func (w *Worker) rank(now time.Duration) rank {
	if w.isRemoved || w.isDraining {
		return unavailable
	}
	isFull := w.slots() > 0 && w.inFlight >= w.slots()
	if w.down() != nil {
		switch {
		case w.member.Usable == nil || !w.member.Usable():
			return unavailable
		case isFull:
			return fullResort
		}
		return lastResort
	}
	switch {
	case isFull:
		return full
	case now < w.restsUntil:
		return resting
	}
	return ready
}

// isBetter reports whether work goes to w rather than to other, which has the same rank.
func (w *Worker) isBetter(other *Worker) bool {
	if a, b := w.load(), other.load(); a != b {
		return a < b
	}
	return w.last < other.last
}

// Reason is why a worker was chosen.
type Reason string

// The reasons.
const (
	Only      Reason = "only"       // no other worker could be given the work
	Free      Reason = "free"       // it had nothing in flight
	InOrder   Reason = "order"      // it was the first of the work's order that was ready
	LeastBusy Reason = "least_busy" // it had the least in flight for its slots and weight
	Queued    Reason = "queued"     // it had the first free slot for work that waited
)

// State describes a worker.
type State struct {
	Name     string `json:"name"`
	Weight   int    `json:"weight"`
	InFlight int    `json:"in_flight"`
	Slots    int    `json:"-"` // 0: no limit
	Used     int    `json:"-"` // usable slots, at most Slots (Narrow)
	Draining bool   `json:"draining"`
	Down     error  `json:"-"` // why the worker is not ready; nil if it is
}

// errUnknown is the error for a name that no worker has.
func errUnknown(name string, members map[string]*Worker) error {
	known := make([]string, 0, len(members))
	for name := range members {
		known = append(known, name)
	}
	slices.Sort(known)
	if len(known) == 0 {
		return fault.New(fault.NotFound, "%.80q does not exist: there are no others either", name)
	}
	return fault.New(fault.NotFound, "%.80q does not exist: known are %s", name, strings.Join(known, ", "))
}
