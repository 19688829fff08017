package app

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/fault"
)

func poolsOf(shares ...int) (list []*pool) {
	for i, share := range shares {
		p := &pool{name: string(rune('a' + i))}
		p.share.Store(int64(share))
		p.could.Store(true)
		list = append(list, p)
	}
	return list
}

// The split holds within five standard deviations, by lot and by key.
func TestSplit(t *testing.T) {
	t.Parallel()
	const n = 20000
	pools := poolsOf(70, 20, 10, 0)
	for _, sticky := range []bool{false, true} {
		got := map[string]int{}
		for i := range n {
			key := ""
			if sticky {
				key = fmt.Sprintf("198.51.%d.%d", i>>8, i&255)
			}
			got[choose(pools, key).name]++
		}
		for _, p := range pools {
			share := float64(p.share.Load()) / 100
			if far := math.Abs(float64(got[p.name]) - n*share); far > 5*math.Sqrt(n*share*(1-share)) {
				t.Errorf("sticky %v: %s has %d of %d requests instead of %.0f", sticky, p.name, got[p.name], n, n*share)
			}
		}
	}
}

// Who has a key stays where he is, unless the shares change; then no more go than have to.
func TestSplitIsStable(t *testing.T) {
	t.Parallel()
	const n = 10000
	before, after := poolsOf(50, 50), poolsOf(60, 40)
	moved := 0
	for i := range n {
		key := fmt.Sprint("session-", i)
		first := choose(before, key)
		if again := choose(before, key); again != first {
			t.Fatalf("%s moved from %s to %s", key, first.name, again.name)
		}
		switch now := choose(after, key).name; {
		case now == first.name:
		case now == "b":
			t.Fatalf("%s moved to the pool whose share fell", key)
		default:
			moved++
		}
	}
	if moved < n/14 || moved > n/7 {
		t.Errorf("%d of %d clients moved for a tenth of the share", moved, n)
	}
	// Gateways of all versions have to agree.
	if got := fmt.Sprint(choose(before, "x").name, choose(before, "y").name, choose(before, "198.51.100.7").name, choose(before, "0").name); got != "abab" {
		t.Errorf("the keys' pools are %s now", got)
	}
}

func TestPoolWithoutWorkers(t *testing.T) {
	t.Parallel()
	pools := poolsOf(90, 10, 0)
	pools[0].could.Store(false)
	for range 100 {
		if got := choose(pools, "k").name; got != "b" {
			t.Fatalf("%s was chosen", got)
		}
	}
	pools[1].could.Store(false)
	if got := choose(pools, "").name; got != "c" {
		t.Errorf("%s was chosen, not the one without a share", got)
	}
	pools[2].could.Store(false)
	if choose(pools, "") == nil {
		t.Error("no pool was chosen")
	}
}

// Who waits enters the scheduler once, and leaves with its pool.
func TestWaiting(t *testing.T) {
	t.Parallel()
	var entered atomic.Int64
	gone, leave := context.WithCancel(t.Context())
	p := &pool{gone: gone, scheduler: balance.New(balance.Options{
		Limits: balance.Limits{Queue: 10}, Watch: func(time.Duration, bool, error) { entered.Add(1) },
	})}
	p.scheduler.Set([]balance.Member{{Name: "a", Slots: 1}})
	first, err := p.acquire(t.Context(), balance.Work{})
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	waits := func(then func(*balance.Seat, error)) {
		wait.Go(func() { then(p.acquire(t.Context(), balance.Work{})) })
		until(t, "it waits", func() bool { return p.scheduler.Queued() == 1 })
	}
	waits(func(s *balance.Seat, err error) {
		if err != nil {
			t.Error(err)
			return
		}
		s.Done(balance.OK)
	})
	first.Done(balance.OK)
	wait.Wait()
	if n := entered.Load(); n != 2 {
		t.Errorf("two requests entered %d times", n)
	}
	if first, err = p.acquire(t.Context(), balance.Work{}); err != nil {
		t.Fatal(err)
	}
	defer first.Done(balance.OK)
	waits(func(_ *balance.Seat, err error) {
		if !fault.Is(err, fault.Cancelled) {
			t.Errorf("of a pool that left: %v", err)
		}
	})
	leave()
	wait.Wait()
}

func TestSticky(t *testing.T) {
	t.Parallel()
	a := ask{client: netip.MustParseAddr("::ffff:192.0.2.1"), header: http.Header{"Cookie": {"x=1", "sid=\"abc\"; sidx=2"}, "X-User": {"u"}}}
	for text, want := range map[string]string{"": "", "cookie:sid": "abc", "cookie:no": "", "header:X-User": "u", "client": "192.0.2.1"} {
		s, err := ParseSticky(text)
		if got := s.key(&a); err != nil || got != want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	for _, bad := range []string{"cookie", "cookie:", "cookie:a b", "header:x\n", "client:x", "other"} {
		if _, err := ParseSticky(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
