package admit

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

func TestCallerOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, address, want string }{
		{"alice", "192.0.2.7:1234", "alice"},
		{"", "192.0.2.7:1234", "192.0.2.0/24"},
		{"", "192.0.2.200:1", "192.0.2.0/24"},
		{"", "[::ffff:192.0.2.7]:1", "192.0.2.0/24"},
		{"", "[2001:db8:1:2:3:4:5:6]:1", "2001:db8:1:2::/64"},
		{"", "[fe80::1%eth0]:1", "fe80::/64"},
		{"", "@", "local/"},
		{"", "", "local/"},
	} {
		got := new(Lanes).CallerOf(c.name, c.address)
		if string(got) != c.want || got.Anonymous() != (c.name == "") {
			t.Errorf("%q at %q is %q", c.name, c.address, got)
		}
	}
}

// laneFor makes a lane in which no two of these callers share a counter by chance.
func laneFor(limit int, callers ...balance.Caller) *Lane {
	for {
		l, seen := NewLane("small", limit), map[*atomic.Int64]bool{}
		for _, c := range callers {
			seen[l.callers.of(c)] = true
		}
		if len(seen) == len(callers) {
			return l
		}
	}
}

// TestCallersShareALane checks that no caller has more slots than were free, that a caller without a slot gets one, and
// that all slots are released.
func TestCallersShareALane(t *testing.T) {
	t.Parallel()
	callers := []balance.Caller{"ann", "bob", "192.0.2.0/24", "198.51.100.0/24"}
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 20).Draw(t, "limit")
		l := laneFor(limit, callers...)
		anonymous := limit + 1
		if rapid.Bool().Draw(t, "known") {
			part := rapid.Float64Range(0.01, 0.99).Draw(t, "anonymous")
			l.Anonymous(part, func() bool { return true })
			anonymous = max(1, int(part*float64(limit)))
		}
		var seats []*Seat
		held := map[balance.Caller]int{}
		strangers := func() int { return held[callers[2]] + held[callers[3]] }
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				c := rapid.SampledFrom(callers).Draw(t, "caller")
				free := limit - len(seats)
				want := free > held[c] && (!c.Anonymous() || strangers() < anonymous)
				s, err := l.Enter(c)
				if want != (err == nil) || err != nil && (!fault.Is(err, fault.Exhausted) ||
					fault.IsCallerLimit(err) != (free > 0 || c.Anonymous() && strangers() >= anonymous)) {
					t.Fatalf("%q with %d of %d, %d free: %v", c, held[c], limit, free, err)
				}
				if err == nil {
					seats = append(seats, s)
					held[c]++
				}
			},
			"leave": func(t *rapid.T) {
				if len(seats) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(seats)-1).Draw(t, "who")
				held[seats[i].caller]--
				seats[i].Leave()
				seats = append(seats[:i], seats[i+1:]...)
			},
			"": func(t *rapid.T) {
				if n := l.running.Load(); int(n) != len(seats) {
					t.Fatalf("%d in the lane, want %d", n, len(seats))
				}
				if n := l.strangers.Load(); int(n) != strangers() {
					t.Fatalf("%d anonymous in the lane, want %d", n, strangers())
				}
			},
		})
		for _, s := range seats {
			s.Leave()
		}
		for _, c := range callers {
			if n := l.callers.of(c).Load(); n != 0 {
				t.Fatalf("%d places of %q are left", n, c)
			}
		}
	})
}

// TestQuietCallersUnderContention: whatever a greedy caller does, a quiet one finds a place, as long as there are few
// of them.
func TestQuietCallersUnderContention(t *testing.T) {
	t.Parallel()
	callers := []balance.Caller{"greedy"}
	for i := range 8 {
		callers = append(callers, balance.Caller(fmt.Sprint("quiet-", i)))
	}
	l := laneFor(64, callers...)
	stop := make(chan struct{})
	var greedy, quiet sync.WaitGroup
	for range 8 {
		greedy.Go(func() {
			var seats []*Seat
			for {
				select {
				case <-stop:
					for _, s := range seats {
						s.Leave()
					}
					return
				default:
				}
				if s, err := l.Enter("greedy"); err == nil {
					seats = append(seats, s)
				}
			}
		})
	}
	for _, c := range callers[1:] {
		quiet.Go(func() {
			for range 2000 {
				s, err := l.Enter(c)
				if err != nil {
					t.Error(err)
					return
				}
				s.Leave()
			}
		})
	}
	quiet.Wait()
	close(stop)
	greedy.Wait()
	if n := l.running.Load(); n != 0 {
		t.Errorf("%d left", n)
	}
}

func BenchmarkEnter(b *testing.B) {
	l := NewLane("small", 1024)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			s, err := l.Enter("192.0.2.0/24")
			if err != nil {
				b.Error(err)
				return
			}
			s.Leave()
		}
	})
}

func BenchmarkCallerOf(b *testing.B) {
	b.ReportAllocs()
	l := new(Lanes)
	for b.Loop() {
		l.CallerOf("", "192.0.2.7:1234")
	}
}
