// Package admit decides which requests may run now. Lanes keep one kind of work from waiting behind another. Within a
// lane, callers share the places fairly.
//
// A lane is a concurrency limit for one kind of request. A request that finds its lane full is refused at once, with a
// retry hint. An admitted request has a seat, and moves with it to another lane when its kind changes. Requests for
// which waiting pays, such as packs that have to be made, also wait for the slots of their processes (package balance).
// A budget bounds what all requests hold together, for example memory.
//
// A caller may take as many places of a lane, or as much of a budget, as it leaves free. A single caller gets half of
// them, and two get a third each. So there is always room for another caller. All anonymous callers together have a
// part of each lane and budget, and the rest is for known callers.
package admit

import (
	"math"
	"sync/atomic"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// Lanes are those that requests move between.
type Lanes struct {
	Small *Lane // advertisements, ls-refs, negotiation, look-ups
	Hit   *Lane // packs from the cache, and other long answers that only have to be sent
	Cold  *Lane // packs that have to be made first, until they are sent
	Push  *Lane
	Pages *Lane // searches, and pages for browsers

}

// Sizes are the concurrency limits of the lanes.
type Sizes struct{ Small, Hit, Cold, Push, Pages int }

// NewLanes makes the lanes.
func NewLanes(s Sizes) Lanes {
	return Lanes{
		Small: NewLane("small", s.Small), Hit: NewLane("hit", s.Hit), Cold: NewLane("cold", s.Cold), Push: NewLane("push",
			s.Push),
		Pages: NewLane("pages", s.Pages),
	}
}

// Long is the lane of a long answer.
func (l *Lanes) Long(cold bool) *Lane {
	if cold {
		return l.Cold
	}
	return l.Hit
}

// All lists them.
func (l *Lanes) All() []*Lane { return []*Lane{l.Small, l.Hit, l.Cold, l.Push, l.Pages} }

// Lane is a kind of work.
type Lane struct {
	name      string
	limit     int64
	anonymous int64 // limit for all anonymous callers together, while known returns true
	known     func() bool
	watcher   Watcher // nil: none

	running, strangers atomic.Int64 // strangers: those of running that are anonymous
	admitted, refused  atomic.Int64
	callers            tally
}

// NewLane makes a lane that lets limit requests run at the same time.
func NewLane(name string, limit int) *Lane {
	return &Lane{name: name, limit: int64(limit), anonymous: math.MaxInt64, callers: newTally()}
}

// Anonymous limits all anonymous callers together to a part of the lane, from 0 to 1, and at least one place. The limit
// holds while known returns true: callers can be known at all. known is called concurrently. Call Anonymous before the
// first Enter.
func (l *Lane) Anonymous(part float64, known func() bool) {
	l.anonymous, l.known = max(1, int64(part*float64(l.limit))), known
}

// Watcher observes a lane. Its methods are called concurrently.
type Watcher interface {
	Began()  // a request was let in; Ended follows
	Served() // one is known to be of the lane's kind to the end (Seat.Stay), or has left as such
	Ended()  // one has left, or was taken to another lane
}

// Watch sets the watcher. Call it before the first Enter.
func (l *Lane) Watch(w Watcher) { l.watcher = w }

// Enter admits a request, or refuses it with an error of kind Exhausted. The caller of Enter calls Leave at the end of
// the request. Safe for concurrent use.
func (l *Lane) Enter(c balance.Caller) (*Seat, error) {
	s := &Seat{caller: c}
	return s, s.Move(l)
}

// enter takes a place and counts it as the caller's. It takes no lock.
func (l *Lane) enter(c balance.Caller) error {
	own, stranger := l.callers.of(c), c.Anonymous()
	mine := own.Add(1) - 1
	if stranger && l.strangers.Add(1) > l.anonymous && l.known() {
		return l.refuse(own, stranger, true, "too many %s requests of anonymous callers at the same time; try again, or "+
			"sign in")
	}
	for n := l.running.Load(); n < l.limit; n = l.running.Load() {
		if mine >= l.limit-n && c != "" {
			return l.refuse(own, stranger, true, "too many %s requests of yours at the same time; try again")
		}
		if l.running.CompareAndSwap(n, n+1) { // not Add: one that is refused must not take another's place for a moment
			l.admitted.Add(1)
			if l.watcher != nil {
				l.watcher.Began()
			}
			return nil
		}
	}
	return l.refuse(own, stranger, false, "too many %s requests at the same time; try again")
}

// refuse undoes the count. isShare means that other callers would find a place.
func (l *Lane) refuse(own *atomic.Int64, stranger, isShare bool, message string) error {
	own.Add(-1)
	if stranger {
		l.strangers.Add(-1)
	}
	l.refused.Add(1)
	if isShare {
		return fault.CallerLimit(fault.RetrySoon, message, l.name)
	}
	return fault.Retry(fault.Exhausted, fault.RetrySoon, message, l.name)
}

func (l *Lane) leave(c balance.Caller) {
	l.callers.of(c).Add(-1)
	if c.Anonymous() {
		l.strangers.Add(-1)
	}
	l.running.Add(-1)
	if l.watcher != nil {
		l.watcher.Ended()
	}
}

func (l *Lane) served() {
	if l.watcher != nil {
		l.watcher.Served()
	}
}

// Seat is a request's place, in one lane at a time. Not safe for concurrent use. The zero Seat is the server's own, and
// in no lane.
type Seat struct {
	caller balance.Caller
	lane   *Lane // nil: in none
}

// In reports whether the seat is in a lane.
func (s *Seat) In(l *Lane) bool { return s.lane == l }

// Stay notes that the request probably stays in its lane.
func (s *Seat) Stay() { s.lane.served() }

// Move takes the request to another lane, or fails with an error of kind Exhausted and leaves it where it is. To move
// to where it is already does nothing.
func (s *Seat) Move(to *Lane) error {
	if s.lane == to {
		return nil
	}
	if err := to.enter(s.caller); err != nil {
		return err
	}
	if s.lane != nil {
		s.lane.leave(s.caller)
	}
	s.lane = to
	return nil
}

// Withdraw gives up the seat of a request that was not served and is repeated. The watcher does not count it as served.
func (s *Seat) Withdraw() {
	if s.lane != nil {
		s.lane.leave(s.caller)
		s.lane = nil
	}
}

// Leave gives up the seat. Further calls do nothing.
func (s *Seat) Leave() {
	if s.lane == nil {
		return
	}
	s.lane.served()
	s.Withdraw()
}
