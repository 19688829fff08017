package balance

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Member describes a worker.
type Member struct {
	Name   string
	Weight int // share of the work among those that are busy; less than 1 means 1
	Slots  int // how much it may run at once; 0: there is no bound
	// Auto has what is used of the slots follow what running more at once gains, as measured: from one to all of them.
	Auto bool
	// SlowStart is how long it takes until one that is new among others, or is ready again, or drains no longer, has its whole share. 0: at once.
	SlowStart time.Duration
	// Ready tells why it should not be given work; nil, or nil as its answer, if it should. Usable tells whether it can be all the same if
	// no other is ready; nil: no. Both answer from memory and at once: they are asked while a lock is held. Who changes what they answer calls
	// Scheduler.Changed; else it is seen when the worker's turn comes, or a moment later.
	Ready  func() error
	Usable func() bool
}

const (
	maxWeight = 1 << 20
	maxSlots  = 1 << 20
	// restAfterFailure is how long a worker that failed comes after all others. One that fails at once never has anything in flight: it would
	// be given all the work.
	restAfterFailure = 250 * time.Millisecond
	askAgain         = 100 * time.Millisecond // after which one that was not ready is asked again
	warmSteps        = 10                     // in which a slow start comes to its end
)

// Worker is one of those that work is assigned to. It has its counts for as long as somebody holds it, whether it is still a member or
// not.
type Worker struct {
	member   Member
	id       uint64 // in the order of coming
	first    bool   // one of those that there were at first, and not ready yet
	removed  bool
	inFlight int
	slow     int // of that, not Fast
	draining bool
	narrow   int           // of its slots so many for now; 0: all
	last     uint64        // the turn in which it was given work
	rests    time.Duration // after a failure: until when
	warm     time.Duration // since when it has been starting; less than 0: it has started
	down     error         // why it is not ready
	usable   bool          // though it is down
	asked    time.Duration // when it was last found to be down
	seats    heap[*Ticket] // what it runs, by expected end

	// Of the tuner, if the member is Auto.
	spent     spent
	noted     time.Duration // up to when
	notedBusy time.Duration // by the tuner's time
	trial     int           // steps above or below the others; 0: none
	trialLeft int           // pieces of work
	trialEnds time.Duration // at the latest

	// Made from these by Core.settle.
	place            place
	load             float64       // in flight, for its slots and weight
	used             int           // of its slots now; 0: no bound
	end              time.Duration // when the first of what it runs is expected to end
	wake             time.Duration // when time alone changes any of this
	counts           counts        // what it adds to those of its Core
	inOrder, inTimed int
}

// Name is that of the Member.
func (w *Worker) Name() string { return w.member.Name }

// place is a class of workers: one of a lower place comes first, however busy it is.
type place int

const (
	able     place = iota
	resting        // after a failure
	full           // ready, without a free slot
	unsteady       // not ready but usable, when none is
	strained       // unsteady and full
	unable
)

// open tells whether a worker there can be given work now.
func (p place) open() bool { return p <= resting || p == unsteady }

// placeAt is its place as of now; used is set.
func (w *Worker) placeAt(now time.Duration) place {
	p, taken := able, full
	switch {
	case w.removed || w.draining || w.down != nil && !w.usable:
		return unable
	case w.down != nil:
		p, taken = unsteady, strained
	case now < w.rests:
		p = resting
	}
	if w.used > 0 && w.inFlight >= w.used {
		return taken
	}
	return p
}

// errNew is why a worker is not ready that was never asked.
var errNew = errors.New("it is new")

// ask asks whether it is ready, and tells whether the answer is another one than before.
func (w *Worker) ask(now time.Duration) (changed bool) {
	was, could := w.down != nil, w.usable
	if w.down = nil; w.member.Ready != nil {
		w.down = w.member.Ready()
	}
	w.usable = w.down != nil && w.member.Usable != nil && w.member.Usable()
	switch {
	case w.down != nil:
		w.asked = now
	case was && w.first: // it comes together with the others
		w.first = false
	case was:
		w.begin(now)
	}
	return was != (w.down != nil) || could != w.usable
}

// begin begins a slow start.
func (w *Worker) begin(now time.Duration) {
	if w.warm = -1; w.member.SlowStart > 0 {
		w.warm = now
	}
}

// share is the part of its share that it has, by steps: 1 when it has started.
func (w *Worker) share(now time.Duration) float64 {
	if w.warm < 0 {
		return 1
	}
	step := 1 + (now-w.warm)*warmSteps/w.member.SlowStart
	if step >= warmSteps {
		w.warm = -1
		return 1
	}
	return float64(step) / warmSteps
}

// next is when time alone changes what it is given; 0: it does not.
func (w *Worker) next(now time.Duration) (at time.Duration) {
	sooner := func(t time.Duration) {
		if t > now && (at == 0 || t < at) {
			at = t
		}
	}
	sooner(w.rests)
	if w.trial != 0 {
		sooner(max(w.trialEnds, now+1))
	}
	if w.down != nil {
		sooner(max(w.asked+askAgain, now+1))
	}
	if w.warm >= 0 {
		step := (now-w.warm)*warmSteps/w.member.SlowStart + 1
		sooner(w.warm + (step*w.member.SlowStart+warmSteps-1)/warmSteps)
	}
	return at
}

// expected is when the first of what it runs is expected to end; what is late already is expected to take twice as long as it was. Changed: since it was
// last asked.
func (w *Worker) expected(now time.Duration) (changed bool) {
	for {
		t, ok := w.seats.top()
		if !ok || t.end > now {
			break
		}
		for t.end <= now {
			t.end += max(t.end-t.since, leastCharge)
		}
		w.seats.put(t)
	}
	was := w.end
	w.end = 0
	if t, ok := w.seats.top(); ok {
		w.end = t.end
	}
	return w.end != was
}

// before tells whether work goes to a rather than to b.
func (a *Worker) before(b *Worker) bool {
	switch {
	case a.place != b.place:
		return a.place < b.place
	case a.load != b.load:
		return a.load < b.load
	case a.end != b.end:
		return a.end < b.end
	case a.last != b.last:
		return a.last < b.last
	}
	return a.id < b.id
}

// Reason says why a worker was the one.
type Reason string

const (
	Only      Reason = "only"       // no other could be given the work
	Free      Reason = "free"       // it had nothing in flight
	LeastBusy Reason = "least_busy" // all were busy, it the least for its slots and weight
	Queued    Reason = "queued"     // the work had waited until there was a slot
)

// State is what is known of a worker.
type State struct {
	Name     string
	Weight   int
	InFlight int
	Slots    int // 0: there is no bound
	Used     int // of the slots, now
	Draining bool
	Starting bool  // it does not have its whole share yet
	Down     error // why it is not ready; nil if it is
}

// unknown is the error for a name that no worker has.
func unknown(name string, members map[string]*Worker) error {
	known := make([]string, 0, len(members))
	for name := range members {
		known = append(known, name)
	}
	slices.Sort(known)
	if len(known) == 0 {
		return fault.New(fault.NotFound, "there is no %.80q, nor any other", name)
	}
	return fault.New(fault.NotFound, "there is no %.80q; there are %s", name, strings.Join(known, ", "))
}

// canTry tells whether a worker could use more or fewer slots than the others for some time.
func (w *Worker) canTry() bool { return w.place == full && w.member.Auto && w.trial == 0 }
