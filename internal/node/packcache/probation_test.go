package packcache

import (
	"testing"
	"time"
)

// TestProbationBeginsAfterTransfer keeps an entry whose only reader took longer than the probation.
func TestProbationBeginsAfterTransfer(t *testing.T) {
	t.Parallel()
	x := newIndex(20*time.Second, time.Hour)
	start := time.Now()
	e := &cacheEntry{size: 1, refs: 1}
	x.add(e, false, start)
	later := start.Add(time.Minute)
	if young, _ := x.expire(later); len(young) > 0 {
		t.Fatal("an entry with a reader expired")
	}
	x.release(e, later)
	if young, _ := x.expire(later.Add(19 * time.Second)); len(young) > 0 {
		t.Error("the entry expired 19 s after its reader left, want 20 s")
	}
	if young, _ := x.expire(later.Add(20 * time.Second)); len(young) != 1 {
		t.Errorf("%d entries expired 20 s after the reader left, want 1", len(young))
	}
}
