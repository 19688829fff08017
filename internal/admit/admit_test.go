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

func TestFullLaneRefusesAndSaysWhenToComeBack(t *testing.T) {
	l := NewLane("small", 1)
	s := enter(t, l)
	_, err := l.Enter("")
	if !fault.Is(err, fault.Exhausted) || fault.RetryAfter(err) <= 0 {
		t.Errorf("a full lane gave %v, want Exhausted with advice", err)
	}
	s.Leave()
	s.Leave() // nobody else's place
	expectRunning(t, l, 0)
	enter(t, l)
}

// TestWithdraw: what is not served is not told of as served.
func TestWithdraw(t *testing.T) {
	l, served := NewLane("small", 1), 0
	l.OnServed(func() { served++ })
	s := enter(t, l)
	s.Withdraw()
	s.Withdraw()
	s.Leave()
	expectRunning(t, l, 0)
	if served != 0 {
		t.Errorf("served %d times", served)
	}
	enter(t, l).Leave()
	if served != 1 {
		t.Errorf("served %d times, want 1", served)
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

// Of a request that turns out to be of another kind a lane tells nothing.
func TestLaneTellsOfWhatItServes(t *testing.T) {
	small, bulk := NewLane("small", 2), NewLane("bulk", 1)
	told := 0
	small.OnServed(func() { told++ })
	for _, step := range []struct {
		name string
		do   func(s *Seat)
		want int
	}{
		{"leaves", func(*Seat) {}, 1},
		{"stays and leaves", (*Seat).Stay, 2},
		{"moves on", func(s *Seat) {
			if err := s.Move(bulk); err != nil {
				t.Error(err)
			}
		}, 0},
	} {
		told = 0
		s := enter(t, small)
		step.do(s)
		s.Leave()
		s.Leave()
		if told != step.want {
			t.Errorf("of a request that %s the lane told %d times, want %d", step.name, told, step.want)
		}
	}
}

// As long as there are no more callers than places nobody is refused, and there are never more inside than places.
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
