package inflight

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestBoard(t *testing.T) {
	t.Parallel()
	b := NewBoard()
	ctx, first := b.Begin(t.Context(), "git", "")
	_, second := b.Begin(t.Context(), "page", "from-elsewhere")
	if From(ctx) != first || From(t.Context()) != nil || first.ID() == "" || second.ID() != "from-elsewhere" {
		t.Errorf("requests = %+v, %+v, want the first in its context, and the ID from-elsewhere", first, second)
	}
	first.Describe("fetch", "app", "alice")
	first.Describe("", "", "bob")
	first.SetStage(Packing)
	first.Sent(7)
	first.AddUsage(Usage{Commands: 1, User: time.Second, MaxRSS: 5})
	first.AddUsage(Usage{Commands: 1, System: time.Second, MaxRSS: 3, Out: 9})
	all, n := b.Requests(1)
	if n != 2 || len(all) != 1 {
		t.Fatalf("Requests(1) = %+v of %d, want 1 of 2", all, n)
	}
	s := all[0]
	want := Usage{Commands: 2, User: time.Second, System: time.Second, MaxRSS: 5, Out: 9}
	if s.Kind != "fetch" || s.Repository != "app" || s.Caller != "bob" || s.Stage.String() != "packing" || s.Bytes != 7 ||
		s.Git != want || s.InStage > s.Age {
		t.Errorf("state = %+v, want a fetch of app by bob with usage %+v", s, want)
	}
	first.End()
	second.End()
	if all, n := b.Requests(10); n != 0 || len(all) != 0 {
		t.Errorf("requests after their end = %+v, want none", all)
	}
}

func TestRequestWithoutOwner(t *testing.T) {
	t.Parallel()
	r := From(context.Background())
	r.SetStage(Sending)
	r.Sent(1)
	r.Describe("a", "b", "c")
	r.AddUsage(Usage{Commands: 1})
	if r.Usage() != (Usage{}) || r.Repository() != "" || r.ID() != "" {
		t.Error("a nil request has data, want none")
	}
	r.End()
	var off *Board
	if ctx, r := off.Begin(t.Context(), "git", "x"); r != nil || ctx != t.Context() || r.WithRequest(ctx) != ctx {
		t.Error("a nil board returns a request, want none")
	}
}

func TestIDs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"1y2p0ij32e8e7": true, "a.b_C-9": true, "": false, "a b": false, "a\nb": false, "é": false,
		strings.Repeat("a", 64): true, strings.Repeat("a", 65): false,
	} {
		if IsID(text) != want {
			t.Errorf("IsID(%q) = %v, want %v", text, !want, want)
		}
	}
	_, r := NewBoard().Begin(t.Context(), "git", "an ID\n")
	defer r.End()
	if !IsID(r.ID()) {
		t.Errorf("ID after an invalid one = %q, want a valid one", r.ID())
	}
	r.Describe("", strings.Repeat("x", 5000), "")
	if n := len(r.Repository()); n != maxName {
		t.Errorf("length of the repository = %d, want %d", n, maxName)
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
		t.Errorf("running requests = %d, want 0", n)
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

// Concurrent waits for the origins of many mirrors count once.
func TestOriginWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, r := NewBoard().Begin(t.Context(), "search", "")
		defer r.End()
		for range 3 {
			first, second := r.WaitForOrigin(), r.WaitForOrigin()
			time.Sleep(time.Second)
			first()
			time.Sleep(time.Second)
			second()
			time.Sleep(time.Minute)
		}
		end := r.WaitForOrigin()
		time.Sleep(time.Second)
		if got := r.OriginWait(); got != 7*time.Second {
			t.Errorf("OriginWait() = %v, want 7s", got)
		}
		end()
	})
}
