package admit

import (
	"fmt"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

func TestBudgetRefusesExcess(t *testing.T) {
	t.Parallel()
	b := NewBudget("requests", 10)
	if err := b.Take("", 7); err != nil {
		t.Fatal(err)
	}
	if err := b.Take("", 4); !fault.Is(err, fault.Exhausted) || fault.IsCallerLimit(err) || fault.RetryAfter(err) <= 0 {
		t.Errorf("more than is left gave %v, want Exhausted with advice", err)
	}
	if err := b.Take("", 3); err != nil {
		t.Errorf("what is left was refused: %v", err)
	}
	b.Give("", 10)
	if err := b.Take("", 10); err != nil {
		t.Errorf("all of an unused budget was refused: %v", err)
	}
}

// TestCallersShareABudget checks that no caller reserves more than was free, that anonymous callers have their share,
// and that all bytes are released.
func TestCallersShareABudget(t *testing.T) {
	t.Parallel()
	callers := []balance.Caller{"ann", "bob", "192.0.2.0/24", "198.51.100.0/24"}
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(2, 200).Draw(t, "limit")
		b := NewBudget("requests", limit)
		anonymous := limit
		if rapid.Bool().Draw(t, "known") {
			part := rapid.Float64Range(0.01, 0.99).Draw(t, "anonymous")
			b.Anonymous(part, func() bool { return true })
			anonymous = int64(part * float64(limit))
		}
		held := map[balance.Caller]int64{}
		strangers := func() int64 { return held[callers[2]] + held[callers[3]] }
		used := func() int64 { return strangers() + held["ann"] + held["bob"] }
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				c, n := rapid.SampledFrom(callers).Draw(t, "caller"), rapid.Int64Range(1, limit).Draw(t, "n")
				free := limit - used() - n
				want := free >= 0 && held[c]+n <= free && (!c.Anonymous() || strangers()+n <= anonymous)
				err := b.Take(c, n)
				if want != (err == nil) || err != nil && !fault.Is(err, fault.Exhausted) {
					t.Fatalf("%q with %d takes %d of %d, %d used: %v", c, held[c], n, limit, used(), err)
				}
				if err == nil {
					held[c] += n
				}
			},
			"give": func(t *rapid.T) {
				c := rapid.SampledFrom(callers).Draw(t, "caller")
				n := rapid.Int64Range(0, held[c]).Draw(t, "n")
				b.Give(c, n)
				held[c] -= n
			},
			"": func(t *rapid.T) {
				if n := b.Used(); n != used() || b.strangers != strangers() {
					t.Fatalf("%d used, %d by strangers; want %d, %d", n, b.strangers, used(), strangers())
				}
			},
		})
		for c, n := range held {
			b.Give(c, n)
		}
		if len(b.callers) > 0 {
			t.Fatalf("callers who hold nothing are remembered: %v", b.callers)
		}
	})
}

func TestHolding(t *testing.T) {
	t.Parallel()
	b := NewBudget("requests", 100)
	h := b.Hold("ann", 10)
	for _, n := range []int64{5, 20, 35} { // 50 beyond the free ones: the most that one can have
		if err := h.Grow(n); err != nil {
			t.Fatal(err)
		}
	}
	if used := b.Used(); used != 50 || h.Size() != 60 {
		t.Errorf("%d used by %d", used, h.Size())
	}
	if err := h.Grow(1); !fault.Is(err, fault.Invalid) {
		t.Errorf("more than one caller can have: %v, want Invalid, as it would never fit", err)
	}
	other := b.Hold("ann", 0)
	if err := other.Grow(1); !fault.IsCallerLimit(err) {
		t.Errorf("another of the same caller: %v", err)
	}
	h.Shrink(15)
	if used := b.Used(); used != 5 {
		t.Errorf("%d used after most was given back", used)
	}
	h.Shrink(0)
	h.Shrink(0)
	if used := b.Used(); used != 0 || h.Size() != 0 {
		t.Errorf("%d used after all was given back", used)
	}
	var none Holding
	if err := none.Grow(1 << 50); err != nil {
		t.Error(err)
	}
	none.Shrink(0)
}

func TestBudgetUnderContention(t *testing.T) {
	t.Parallel()
	const limit = 100
	b := NewBudget("requests", limit)
	var wg sync.WaitGroup
	for i := range 8 {
		c, n := balance.Caller(fmt.Sprint("caller-", i%4)), int64(3+i)
		wg.Go(func() {
			for range 2000 {
				if b.Take(c, n) == nil {
					if used := b.Used(); used > limit {
						t.Errorf("%d of %d are held", used, limit)
					}
					b.Give(c, n)
				}
			}
		})
	}
	wg.Wait()
	if used := b.Used(); used != 0 {
		t.Errorf("%d left", used)
	}
}
