package top

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node/packcache"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// get asks as a client of the private listener does.
func get(t *testing.T, h http.Handler, query string) (int, State) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, Path+query, nil))
	var s State
	if w.Code == http.StatusOK {
		d := json.NewDecoder(w.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&s); err != nil {
			t.Fatal(err)
		}
	}
	return w.Code, s
}

func TestState(t *testing.T) {
	t.Parallel()
	runner, err := process.New(process.Options{Classes: map[process.Class]process.Limits{"pack": {Slots: 2},
		"refs": {Slots: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	board, lanes := inflight.NewBoard(), admit.NewLanes(admit.Sizes{Small: 5, Hit: 6, Cold: 7, Push: 8, Pages: 9})
	seat, err := lanes.Hit.Enter("ada")
	if err != nil {
		t.Fatal(err)
	}
	defer seat.Leave()
	watched := New(Sources{
		Role: "serve", Version: "v1", Board: board, Runner: runner,
		Lanes: admit.NewMetrics(lanes, admit.NewBudget("requests", 1), nil),
		Log:   slog.New(slog.DiscardHandler),
		Cache: func() packcache.Stats {
			return packcache.Stats{Bytes: 1, MaxBytes: 2, Entries: 3, Fills: 4, Hits: 5, Misses: 6, Follows: 7}
		},
		Origins: func() []origin.Status { return []origin.Status{{Host: "a", Running: 1, Error: "secret"}} },
		Redact:  func(text string) string { return strings.ReplaceAll(text, "secret", "*") },
	})
	ctx, r := board.Begin(t.Context(), "fetch", "first")
	r.Describe("", "team/secret", "ada")
	input, feed := io.Pipe()
	p, err := runner.Start(ctx, process.Command{Class: "pack", Subcommand: "hash-object",
		Args: []string{"hash-object", "--stdin", "--path=secret"}, Stdin: input, Caller: "ada"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		feed.Close()
		if _, err := io.Copy(io.Discard, p.Stdout()); err != nil {
			t.Error(err)
		}
		if _, err := p.Wait(); err != nil {
			t.Error(err)
		}
		r.End()
		if err := runner.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	r.Sent(100)
	for i := range 20 {
		_, later := board.Begin(t.Context(), "page", fmt.Sprint("later", i))
		later.SetStage(inflight.Working)
		defer later.End()
	}
	status, s := get(t, watched, "?most=5")
	if status != http.StatusOK || s.Role != "serve" || s.Version != "v1" || s.Requests.Running != 21 ||
		len(s.Requests.List) != 5 || s.Git.Running != 1 ||
		s.Requests.Stages["packing"] != 1 || s.Requests.Stages["working"] != 4 {
		t.Fatalf("%d, %+v", status, s)
	}
	first, command := s.Requests.List[0], s.Git.List[0]
	if first.ID != "first" || first.Operation != "fetch" || first.Stage != "packing" || first.Repository != "team/*" ||
		first.Caller != "ada" || first.Bytes != 100 {
		t.Errorf("%+v", first)
	}
	if command.PID != p.Pid() || command.Class != "pack" || command.Subcommand != "hash-object" ||
		strings.Contains(command.Arguments, "secret") || command.Request != "first" ||
		command.Repository != "team/*" {
		t.Errorf("%+v", command)
	}
	if got := fmt.Sprint(s.Git.Slots); got != "[{pack 1 0 2} {refs 0 0 1}]" {
		t.Error(got)
	}
	if got := fmt.Sprint(s.Lanes); got != "[{cold 0 0 7 0 0} {hit 1 0 6 1 0} {pages 0 0 9 0 0} {push 0 0 8 0 0} {small "+
		"0 0 5 0 0}]" {
		t.Error(got)
	}
	if got := fmt.Sprint(*s.Cache); got != "{1 2 3 4 5 6 7}" {
		t.Error(got)
	}
	if got := fmt.Sprint(s.Origins); got != "[{a 1 * 0}]" {
		t.Error(got)
	}
	if len(s.Heavy.Repositories) != 1 || s.Heavy.Repositories[0].Name != "team/*" ||
		s.Heavy.Repositories[0].Bytes != 100 || s.Heavy.Callers[0].Name != "ada" {
		t.Errorf("%+v", s.Heavy)
	}
	for query, want := range map[string]int{"?most=x": 400, "?most=-1": 400, "?most=99999": 200, "": 200} {
		if status, _ := get(t, watched, query); status != want {
			t.Errorf("%s: %d", query, status)
		}
	}
}

// TestStateOfNothing checks the state of a process without requests.
func TestStateOfNothing(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	o := Sources{Board: inflight.NewBoard(), Log: slog.New(slog.DiscardHandler)}
	New(o).ServeHTTP(w, httptest.NewRequest(http.MethodGet, Path, nil))
	if text := w.Body.String(); w.Code != http.StatusOK || strings.Contains(text, "null") {
		t.Errorf("%d %s", w.Code, text)
	}
}

func TestOrder(t *testing.T) {
	t.Parallel()
	list := []Request{
		{ID: "a", AgeMS: 1, Bytes: 5, GitCPUMS: 1, Repository: "z", Caller: "m", Stage: "queued"},
		{ID: "b", AgeMS: 2, Bytes: 9, GitCPUMS: 3, Repository: "y", Caller: "l", Stage: "sending"},
		{ID: "c", AgeMS: 3, Bytes: 5, GitCPUMS: 2, Repository: "x", Caller: "n", Stage: "packing"},
	}
	for by, want := range map[Sort]string{ByAge: "cba", ByBytes: "bca", ByCPU: "bca", ByRepository: "cba", ByCaller: "bac",
		ByStage: "cab"} {
		for _, reversed := range []bool{false, true} {
			Order(list, by, reversed)
			got := ""
			for _, r := range list {
				if reversed {
					got = r.ID + got
				} else {
					got += r.ID
				}
			}
			if got != want {
				t.Errorf("by %s (reversed: %v): %s, want %s", by, reversed, got, want)
			}
		}
	}
}

// BenchmarkState is what a look costs while 1,000 requests run.
func BenchmarkState(b *testing.B) {
	board := inflight.NewBoard()
	for i := range 1000 {
		_, r := board.Begin(context.Background(), "fetch", "")
		r.Describe("", fmt.Sprint("team/app", i%50), "ada")
		r.Sent(int64(i))
	}
	watched := New(Sources{Board: board, Redact: strings.Clone, Log: slog.New(slog.DiscardHandler)})
	b.ReportAllocs()
	for b.Loop() {
		watched.made = time.Time{}
		if _, err := watched.encoded(defaultShown); err != nil {
			b.Fatal(err)
		}
	}
}
