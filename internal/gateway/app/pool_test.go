package app

import (
	"math"
	"testing"
)

func poolsOf(shares ...int) (list []*pool) {
	for i, share := range shares {
		p := &pool{name: string(rune('a' + i))}
		p.share.Store(int64(share))
		p.isUsable.Store(true)
		list = append(list, p)
	}
	return list
}

// The split holds within five standard deviations.
func TestSplit(t *testing.T) {
	t.Parallel()
	const n = 20000
	pools := poolsOf(70, 20, 10, 0)
	got := map[string]int{}
	for range n {
		got[choose(pools).name]++
	}
	for _, p := range pools {
		share := float64(p.share.Load()) / 100
		if far := math.Abs(float64(got[p.name]) - n*share); far > 5*math.Sqrt(n*share*(1-share)) {
			t.Errorf("%s: got %d of %d requests, want %.0f", p.name, got[p.name], n, n*share)
		}
	}
}

func TestPoolWithoutWorkers(t *testing.T) {
	t.Parallel()
	pools := poolsOf(90, 10, 0)
	pools[0].isUsable.Store(false)
	for range 100 {
		if got := choose(pools).name; got != "b" {
			t.Fatalf("got pool %s, want b", got)
		}
	}
	pools[1].isUsable.Store(false)
	if got := choose(pools).name; got != "c" {
		t.Errorf("got pool %s, want c, which has no share", got)
	}
	pools[2].isUsable.Store(false)
	if choose(pools) == nil {
		t.Error("got no pool")
	}
}
