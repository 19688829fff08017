package inflight

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestBoard(t *testing.T) {
	t.Parallel()
	b := NewBoard()
	ctx, first := b.Begin(t.Context(), "git", "")
	_, second := b.Begin(t.Context(), "page", "from-elsewhere")
	if From(ctx) != first || From(t.Context()) != nil || first.ID() == "" || second.ID() != "from-elsewhere" {
		t.Errorf("%+v, %+v", first, second)
	}
	first.Describe("fetch", "app", "alice")
	first.Describe("", "", "bob")
	first.SetStage(Packing)
	first.Sent(7)
	first.AddUsage(Usage{Commands: 1, User: time.Second, MaxRSS: 5})
	first.AddUsage(Usage{Commands: 1, System: time.Second, MaxRSS: 3, Out: 9})
	all, n := b.Requests(1)
	if n != 2 || len(all) != 1 {
		t.Fatalf("%d of %d: %+v", len(all), n, all)
	}
	s := all[0]
	want := Usage{Commands: 2, User: time.Second, System: time.Second, MaxRSS: 5, Out: 9}
	if s.Kind != "fetch" || s.Repository != "app" || s.Caller != "bob" || s.Stage.String() != "packing" || s.Bytes != 7 ||
		s.Git != want || s.InStage > s.Age {
		t.Errorf("%+v", s)
	}
	if err := testutil.CollectAndCompare(b, strings.NewReader(`# HELP packhorse_requests_running Requests in flight, by stage.
# TYPE packhorse_requests_running gauge
packhorse_requests_running{stage="packing"} 1
packhorse_requests_running{stage="queued"} 0
packhorse_requests_running{stage="reading"} 1
packhorse_requests_running{stage="remote"} 0
packhorse_requests_running{stage="sending"} 0
packhorse_requests_running{stage="working"} 0
`)); err != nil {
		t.Error(err)
	}
	first.End()
	second.End()
	if all, n := b.Requests(10); n != 0 || len(all) != 0 {
		t.Errorf("after their end: %+v", all)
	}
}

func TestNobodysRequest(t *testing.T) {
	t.Parallel()
	r := From(context.Background())
	r.SetStage(Sending)
	r.Sent(1)
	r.Describe("a", "b", "c")
	r.AddUsage(Usage{Commands: 1})
	if r.Usage() != (Usage{}) || r.Repository() != "" || r.ID() != "" {
		t.Error("nobody's request knows something")
	}
	r.End()
	var off *Board
	if ctx, r := off.Begin(t.Context(), "git", "x"); r != nil || ctx != t.Context() || r.WithRequest(ctx) != ctx {
		t.Error("no board lists a request")
	}
}

func TestIDs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"1y2p0ij32e8e7": true, "a.b_C-9": true, "": false, "a b": false, "a\nb": false, "é": false,
		strings.Repeat("a", 64): true, strings.Repeat("a", 65): false,
	} {
		if IsID(text) != want {
			t.Errorf("%q", text)
		}
	}
	_, r := NewBoard().Begin(t.Context(), "git", "an ID\n")
	defer r.End()
	if !IsID(r.ID()) {
		t.Errorf("%q is taken for an ID", r.ID())
	}
	r.Describe("", strings.Repeat("x", 5000), "")
	if n := len(r.Repository()); n != maxName {
		t.Errorf("a name of %d bytes", n)
	}
}

func TestBoardConcurrently(t *testing.T) {
	t.Parallel()
	b := NewBoard()
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			for range 500 {
				_, r := b.Begin(context.Background(), "git", "")
				r.SetStage(Working)
				r.Sent(1)
				r.Describe("fetch", "app", "")
				b.Requests(3)
				r.End()
			}
		})
	}
	work.Wait()
	if _, n := b.Requests(0); n != 0 {
		t.Errorf("%d left", n)
	}
}

func BenchmarkRequest(b *testing.B) {
	board := NewBoard()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			_, r := board.Begin(context.Background(), "git", "")
			r.SetStage(Working)
			r.End()
		}
	})
}
