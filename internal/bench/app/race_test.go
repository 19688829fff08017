package app

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/benchtest"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// TestAppTurns sends the same requests to three servers, in parts. Each part begins with another server.
func TestAppTurns(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	var mu sync.Mutex // guards turns
	var turns []string
	paths := map[string][]string{}
	var urls []string
	for _, name := range []string{"a", "b", "c"} {
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			if len(turns) == 0 || turns[len(turns)-1][:1] != name {
				turns = append(turns, name)
			}
			turns[len(turns)-1] += "."
			paths[name] = append(paths[name], r.URL.Path)
		}))
		defer server.Close()
		urls = append(urls, server.URL)
	}
	out, errs, err := benchtest.Run(t, t.Context(),
		append([]string{"app", "--json", "--clients", "1", "--rate", "500", "--count", "8", "--turns", "3", "--path", "/x",
			"--path", "/y",
			"--ideal", "1", "--service", "1ms"}, urls...)...)
	if err != nil {
		t.Fatal(err, errs)
	}
	// Each server's last turn precedes another server's first.
	if got, want := strings.Join(turns, " "), "a... b... c... b... c... a... c.. a.. b.."; got != want {
		t.Errorf("turns %s, want %s", got, want)
	}
	if !slices.Equal(paths["a"], paths["b"]) || !slices.Equal(paths["a"], paths["c"]) {
		t.Errorf("not the same requests: %v", paths)
	}
	var got struct{ Rows []appReport }
	if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Rows) != 3 {
		t.Fatalf("%v\n%s", err, out)
	}
	for i, row := range got.Rows {
		if !strings.HasPrefix(row.URL, urls[i]) || row.Requests != 8 || row.Turns != 3 || row.Failures != 0 {
			t.Errorf("%+v", row)
		}
		if *row.Ideal != *got.Rows[0].Ideal { // of the same times
			t.Errorf("at best %v and %v", row.Ideal, got.Rows[0].Ideal)
		}
	}
}

// TestAppTurnsFail checks that the error names the failed server.
func TestAppTurnsFail(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	out, errs, err := benchtest.Run(t, t.Context(), "app", server.URL, "http://127.0.0.1:1", "--count", "4", "--turns",
		"2")
	if err == nil || !strings.Contains(err.Error(), "4 requests failed") ||
		!strings.Contains(errs, "http://127.0.0.1:1:\nerror: ") || strings.Contains(errs, server.URL) {
		t.Errorf("%v\n%s", err, errs)
	}
	if !strings.Contains(out, "4 (") || !strings.Contains(out, "0 (0.00/s), 4 failed") {
		t.Error(out)
	}
}

// TestAppAgain repeats turns in which the machine stood still, up to a limit, but not turns with failures.
func TestAppAgain(t *testing.T) {
	t.Parallel()
	type try struct {
		total, longest float64
		failed         bool
		unknown        bool
	}
	quiet, noisy, worse := try{total: 3, longest: 3}, try{total: 30, longest: 10}, try{total: 40, longest: 25}
	for _, c := range []struct {
		tries    []try
		again    int
		unsteady int // before
		want     int // which try counts
		after    int // unsteady
	}{
		{tries: []try{quiet}, again: 5, want: 0},
		{tries: []try{{total: 15, longest: 10}}, again: 5, want: 0}, // less than a thousandth
		{tries: []try{noisy, worse, quiet}, again: 5, want: 2},
		{tries: []try{{total: 21, longest: 21}, quiet}, again: 5, want: 1},
		{tries: []try{worse, noisy, worse}, again: 2, want: 1, after: 1},
		{tries: []try{noisy}, again: 0, want: 0, after: 1},
		{tries: []try{noisy}, again: 5, unsteady: maxUnsteady, want: 0, after: maxUnsteady + 1},
		{tries: []try{noisy}, again: 5, unsteady: maxUnsteady + 1, want: 0, after: maxUnsteady + 2},
		{tries: []try{{total: 30, longest: 30, unknown: true}}, again: 5, want: 0},
		{tries: []try{{failed: true, total: 90, longest: 90}}, again: 5, want: 0},
		{tries: []try{noisy, {failed: true, total: 90, longest: 90}}, again: 5, want: 1},
	} {
		var made []*appTurn
		r, s := &appRace{appOptions: appOptions{again: c.again}, unsteady: c.unsteady}, &appServer{}
		got, err := r.steady(s, func() (*appTurn, error) {
			if len(made) == len(c.tries) {
				return nil, fmt.Errorf("a try too many")
			}
			one := c.tries[len(made)]
			turn := &appTurn{out: &appOutcome{elapsed: 20 * time.Second}, known: !one.unknown,
				still: loadgen.Standstill{Count: 1, TotalMS: one.total, LongestMS: one.longest}}
			if one.failed {
				turn.out.failures.Add(io.EOF)
			}
			made = append(made, turn)
			return turn, nil
		})
		if err != nil || len(made) != len(c.tries) || got != made[c.want] || s.again != len(made)-1 || r.unsteady != c.after {
			t.Errorf("%+v: %d tries, again %d, unsteady %d, %v", c, len(made), s.again, r.unsteady, err)
		}
	}
}

// TestAppParts checks that turns differ, and that they are the same for each server.
func TestAppParts(t *testing.T) {
	t.Parallel()
	o := appOptions{rate: 10, arrivals: "poisson", seed: 3, count: 5, turns: 2, duration: time.Second,
		timeout: time.Second, clients: 1}
	r, err := o.race([]string{"http://127.0.0.1:1", "http://127.0.0.1:2"})
	if err != nil {
		t.Fatal(err)
	}
	part := func(server, n int) string {
		l := r.servers[server].load
		r.prepare(l, n)
		return fmt.Sprint(l.count, l.duration, l.arrivals.Next(), l.arrivals.Next())
	}
	if a, b := part(0, 1), part(1, 1); a != b || a == part(0, 0) || !strings.HasPrefix(a, "2 0s") ||
		!strings.HasPrefix(part(0, 0), "3 0s") {
		t.Errorf("second turns %s and %s, the first %s", a, b, part(0, 0))
	}
}

// TestAppAdd joins two turns.
func TestAppAdd(t *testing.T) {
	t.Parallel()
	s := &appServer{out: &appOutcome{latency: make([]loadgen.Samples, 2), failed: make([]int, 2)}, known: true}
	for i, known := range []bool{true, false} {
		turn := &appTurn{out: &appOutcome{latency: []loadgen.Samples{{1}, {2, 3}}, failed: []int{1, 2},
			late: loadgen.Samples{4}, elapsed: time.Second}, cpu: 5,
			still: loadgen.Standstill{Count: 1, TotalMS: 0.1 + float64(i)/10, LongestMS: 0.1}, known: known}
		for range 3 {
			turn.out.failures.Add(io.EOF)
		}
		s.add(turn)
		if s.known != known {
			t.Errorf("after turn %d known is %v, want %v", i, s.known, known)
		}
	}
	got := fmt.Sprint(s.out.latency, s.out.failed, s.out.late, s.out.elapsed, s.out.failures.Count(),
		len(s.out.failures.First), s.cpu, s.still)
	if want := "[[1ns 1ns] [2ns 3ns 2ns 3ns]] [2 4] [4ns 4ns] 2s 6 5 10ns {2 0.3 0.1}"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
