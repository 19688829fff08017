package inflight

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

func TestHeaviest(t *testing.T) {
	t.Parallel()
	b := NewBoard()
	var now time.Duration
	b.since = func() time.Duration { return now }
	one := func(repository, caller string, bytes int64, cpu time.Duration) {
		_, r := b.Begin(context.Background(), "fetch", "")
		r.Describe("", repository, caller)
		r.Sent(bytes)
		r.AddUsage(Usage{Commands: 1, User: cpu})
		r.End()
		r.End()
	}
	one("old", "ann", 1<<40, time.Hour)
	now = 6 * time.Minute
	for range 3 {
		one("small", "bob", 1, 0)
	}
	one("big", "bob", 1000, 0)
	one("slow", "", 0, time.Minute)
	_, r := b.Begin(context.Background(), "fetch", "")
	r.Describe("", "running", "ann")
	r.Sent(500)
	repositories, callers := b.Heaviest(1)
	want := []Heavy{{Name: "big", Requests: Estimate{1, 0}, Bytes: Estimate{1000, 0}},
		{Name: "small", Requests: Estimate{3, 0}, Bytes: Estimate{3, 0}},
		{Name: "slow", Requests: Estimate{1, 0}, CPU: Estimate{int64(time.Minute), 0}}}
	if fmt.Sprint(repositories) != fmt.Sprint(want) {
		t.Errorf("%+v, want %+v", repositories, want)
	}
	if len(callers) != 1 || callers[0].Name != "bob" || callers[0].Bytes.Value != 1003 || callers[0].Requests.Value != 4 {
		t.Errorf("callers = %+v, want bob with 1003 bytes of 4 requests", callers)
	}
	if all, _ := b.Heaviest(10); len(all) != 4 || all[1].Name != "running" || all[1].Bytes.Value != 500 {
		t.Errorf("repositories = %+v, want 4, the second one running with 500 bytes", all)
	}
	r.End()
	now = 12 * time.Minute
	if all, who := b.Heaviest(10); len(all)+len(who) > 0 {
		t.Errorf("after minutes without requests: %+v, %+v, want none", all, who)
	}
}

// TestSketch counts an endless sequence of names. Their number is bounded. Heavy names are found. Their counts are
// never too low, and too high by the reported error at most.
func TestSketch(t *testing.T) {
	t.Parallel()
	var s sketch
	truth := map[string]int64{}
	rnd := rand.New(rand.NewPCG(1, 2))
	var total int64
	for i := range 200_000 {
		name := fmt.Sprint("light", i)
		if i%4 == 0 {
			name = fmt.Sprint("heavy", rnd.IntN(10))
		}
		n := 1 + rnd.Int64N(100)
		truth[name] += n
		total += n
		s.add(name, n)
	}
	if len(s.list) != heavyNames || len(s.at) != heavyNames {
		t.Fatalf("names in list = %d, in map = %d, want %d", len(s.list), len(s.at), heavyNames)
	}
	for i, one := range s.list {
		if s.at[one.name] != i {
			t.Fatalf("%s is not at %d", one.name, i)
		}
		if exact := truth[one.name]; exact > one.Value || exact < one.Value-one.Over || one.Over > total/heavyNames {
			t.Errorf("estimate of %s = %+v, want bounds of %d", one.name, one.Estimate, exact)
		}
	}
	for i := range 10 {
		if _, ok := s.at[fmt.Sprint("heavy", i)]; !ok {
			t.Errorf("heavy%d is missing in the sketch, want it there", i)
		}
	}
}

// BenchmarkWholeRequest is what a request costs that is listed, described, counted, and asked git for nothing.
func BenchmarkWholeRequest(b *testing.B) {
	board := NewBoard()
	names := make([]string, 500)
	for i := range names {
		names[i] = fmt.Sprint("team/app", i)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			ctx, r := board.Begin(context.Background(), "other", "")
			r.Describe("fetch", names[i%len(names)], "ada")
			r.SetStage(Working)
			From(ctx).SetStage(Packing)
			r.SetStage(Sending)
			r.Sent(1000)
			r.End()
		}
	})
}
