package admit

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
)

func TestBudgetRefusesWhatDoesNotFit(t *testing.T) {
	b := NewBudget("requests", 10)
	if err := b.Take(7); err != nil {
		t.Fatal(err)
	}
	if err := b.Take(4); !fault.Is(err, fault.Exhausted) || fault.RetryAfter(err) <= 0 {
		t.Errorf("more than is left gave %v, want Exhausted with advice", err)
	}
	if err := b.Take(3); err != nil {
		t.Errorf("what is left was refused: %v", err)
	}
	b.Give(10)
	if err := b.Take(10); err != nil {
		t.Errorf("all of an unused budget was refused: %v", err)
	}
	if b.refused.Load() != 1 {
		t.Errorf("%d refusals counted, want 1", b.refused.Load())
	}
}

func TestBudgetUnderContention(t *testing.T) {
	const limit = 100
	b := NewBudget("requests", limit)
	var held, most atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		n := int64(10 + i)
		wg.Go(func() {
			for range 10_000 {
				if b.Take(n) != nil {
					continue
				}
				if now := held.Add(n); now > limit {
					most.Store(now)
				}
				held.Add(-n)
				b.Give(n)
			}
		})
	}
	wg.Wait()
	if most.Load() > limit || b.used.Load() != 0 {
		t.Errorf("%d of %d held at once, %d left", most.Load(), limit, b.used.Load())
	}
}
