package admit

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
)

func enter(t *testing.T, l *Lane) *Seat {
	t.Helper()
	s, err := l.Enter("")
	if err != nil {
		t.Fatalf("the lane %s refused: %v", l.name, err)
	}
	return s
}

func expectRunning(t *testing.T, l *Lane, want int64) {
	t.Helper()
	if n := l.running.Load(); n != want {
		t.Errorf("%d requests in the lane %s, want %d", n, l.name, want)
	}
}

func TestFullLaneRefusesWithRetryAfter(t *testing.T) {
	l := NewLane("small", 1)
	s := enter(t, l)
	_, err := l.Enter("")
	if !fault.Is(err, fault.Exhausted) || fault.RetryAfter(err) <= 0 {
		t.Errorf("Enter of a full lane = %v, want kind Exhausted with a retry hint", err)
	}
	s.Leave()
	s.Leave() // has no effect
	expectRunning(t, l, 0)
	enter(t, l)
}

// TestWithdraw checks that withdrawn work is not reported as served.
func TestWithdraw(t *testing.T) {
	l, told := NewLane("small", 1), watcher{}
	l.Watch(&told)
	s := enter(t, l)
	s.Withdraw()
	s.Withdraw()
	s.Leave()
	expectRunning(t, l, 0)
	if want := (watcher{began: 1, ended: 1}); told != want {
		t.Errorf("told of %+v, want %+v", told, want)
	}
	enter(t, l).Leave()
	if want := (watcher{began: 2, served: 1, ended: 2}); told != want {
		t.Errorf("told of %+v, want %+v", told, want)
	}
}

func TestSeatIsInOneLane(t *testing.T) {
	small, bulk := NewLane("small", 2), NewLane("bulk", 1)
	s := enter(t, small)
	for range 2 { // the second time does nothing
		if err := s.Move(bulk); err != nil {
			t.Fatal(err)
		}
		if !s.In(bulk) || s.In(small) {
			t.Error("a seat that moved is not where it moved to")
		}
		expectRunning(t, small, 0)
		expectRunning(t, bulk, 1)
	}

	other := enter(t, small)
	if err := other.Move(bulk); !fault.Is(err, fault.Exhausted) || !other.In(small) {
		t.Errorf("a move to a full lane gave %v, want Exhausted, and the seat where it was", err)
	}
	expectRunning(t, small, 1)

	s.Leave()
	if err := other.Move(bulk); err != nil {
		t.Errorf("a lane with room refused a move: %v", err)
	}
	other.Leave()
	expectRunning(t, small, 0)
	expectRunning(t, bulk, 0)
}

// watcher counts calls.
type watcher struct{ began, served, ended int }

func (w *watcher) Began()  { w.began++ }
func (w *watcher) Served() { w.served++ }
func (w *watcher) Ended()  { w.ended++ }

// A request that turns out to be of another kind was not served by its first lane.
func TestLaneReportsRequests(t *testing.T) {
	small, bulk := NewLane("small", 2), NewLane("bulk", 1)
	var told watcher
	small.Watch(&told)
	for _, step := range []struct {
		name   string
		do     func(s *Seat)
		served int
	}{
		{"leaves", func(*Seat) {}, 1},
		{"stays and leaves", (*Seat).Stay, 2},
		{"moves on", func(s *Seat) {
			for range 2 {
				if err := s.Move(bulk); err != nil {
					t.Error(err)
				}
			}
		}, 0},
	} {
		told = watcher{}
		s := enter(t, small)
		step.do(s)
		s.Leave()
		s.Leave()
		if want := (watcher{1, step.served, 1}); told != want {
			t.Errorf("of a request that %s the lane told %+v, want %+v", step.name, told, want)
		}
	}
	defer enter(t, bulk).Leave()
	told = watcher{}
	s := enter(t, small)
	if err := s.Move(bulk); !fault.Is(err, fault.Exhausted) || told != (watcher{began: 1}) {
		t.Errorf("of a request that could not move (%v) the lane told %+v", err, told)
	}
	s.Leave()
}

// No caller is refused while there are at most as many callers as slots, and never more than the slots are in use.
func TestLaneUnderContention(t *testing.T) {
	const limit = 4
	l := NewLane("small", limit)
	var inside, most atomic.Int64
	var wg sync.WaitGroup
	for range 2 * limit {
		wg.Go(func() {
			for range 10_000 {
				s, err := l.Enter("")
				if err != nil {
					continue
				}
				if n := inside.Add(1); n > limit {
					most.Store(n)
				}
				inside.Add(-1)
				s.Leave()
			}
		})
	}
	wg.Wait()
	if most.Load() > limit || l.running.Load() != 0 {
		t.Errorf("%d at once in a lane of %d, %d left", most.Load(), limit, l.running.Load())
	}
	refused := l.refused.Load()
	for range limit {
		wg.Go(func() {
			for range 10_000 {
				s, err := l.Enter("")
				if err != nil {
					t.Error(err)
					return
				}
				s.Leave()
			}
		})
	}
	wg.Wait()
	if l.refused.Load() != refused {
		t.Error("a lane that is not full refused")
	}
}
