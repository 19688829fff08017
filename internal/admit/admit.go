// Package admit decides which requests may run now: by lanes, so that one kind of work does not queue behind another.
//
// A lane is a bound on how many requests of one kind are served at the same time. A request that finds its lane full is refused
// at once, with advice when to come back; cold work, which is worth waiting for, queues for its own slots at the git
// processes. Who was let in has a seat, and moves with it when the request turns out to be of another kind. A budget bounds what all
// requests together hold, where one may be a thousand times as large as another. Later rules of fairness among callers belong here.
package admit

import (
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Lane is a kind of work.
type Lane struct {
	name    string
	limit   int64
	served  func() // may be nil
	running atomic.Int64
	refused atomic.Int64
}

// retryAfter is when a refused caller may come back: such lanes empty quickly.
const retryAfter = time.Second

// NewLane makes a lane that lets limit requests run at the same time.
func NewLane(name string, limit int) *Lane { return &Lane{name: name, limit: int64(limit)} }

// OnServed has f called, by any goroutine, while the lane serves requests that are of its kind to the end: when one is known to be
// (Seat.Stay), and when one leaves. Called before the first Enter.
func (l *Lane) OnServed(f func()) { l.served = f }

// Enter lets a request in, or refuses it with an error of kind Exhausted. Whoever was let in calls Leave when done. Safe for
// concurrent use.
func (l *Lane) Enter() (*Seat, error) {
	s := new(Seat)
	return s, s.Move(l)
}

func (l *Lane) enter() error {
	for n := l.running.Load(); n < l.limit; n = l.running.Load() {
		if l.running.CompareAndSwap(n, n+1) { // not Add: one that is refused must not take another's place for a moment
			return nil
		}
	}
	l.refused.Add(1)
	return fault.Retry(fault.Exhausted, retryAfter, "too many %s requests at the same time; try again", l.name)
}

func (l *Lane) leave() { l.running.Add(-1) }

func (l *Lane) tell() {
	if l.served != nil {
		l.served()
	}
}

// Seat is a request's place, in one lane at a time. Not safe for concurrent use.
type Seat struct{ lane *Lane } // nil: in none

// In tells whether the seat is in a lane.
func (s *Seat) In(l *Lane) bool { return s.lane == l }

// Stay says that the request is of its lane's kind for all that is known.
func (s *Seat) Stay() { s.lane.tell() }

// Move takes the request to another lane, or fails with an error of kind Exhausted and leaves it where it is. To move to where it is
// already does nothing.
func (s *Seat) Move(to *Lane) error {
	if s.lane == to {
		return nil
	}
	if err := to.enter(); err != nil {
		return err
	}
	if s.lane != nil {
		s.lane.leave()
	}
	s.lane = to
	return nil
}

// Leave ends it all. More than once does nothing.
func (s *Seat) Leave() {
	if s.lane == nil {
		return
	}
	s.lane.tell()
	s.lane.leave()
	s.lane = nil
}
