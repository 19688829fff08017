package admit

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
)

func TestFullLaneRefusesAndSaysWhenToComeBack(t *testing.T) {
	l := NewLane("small", 1)
	if err := l.Enter(); err != nil {
		t.Fatal(err)
	}
	err := l.Enter()
	if !fault.Is(err, fault.Exhausted) || fault.RetryAfter(err) <= 0 {
		t.Errorf("a full lane gave %v, want Exhausted with advice", err)
	}
	l.Leave()
	if err := l.Enter(); err != nil {
		t.Errorf("an empty lane refused: %v", err)
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
				if l.Enter() != nil {
					continue
				}
				if n := inside.Add(1); n > limit {
					most.Store(n)
				}
				inside.Add(-1)
				l.Leave()
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
				if err := l.Enter(); err != nil {
					t.Error(err)
					return
				}
				l.Leave()
			}
		})
	}
	wg.Wait()
	if l.refused.Load() != refused {
		t.Error("a lane that is not full refused")
	}
}
