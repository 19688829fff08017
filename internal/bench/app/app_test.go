package app

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/benchtest"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

func TestIdeal(t *testing.T) {
	t.Parallel()
	due := []time.Duration{0, 1, 2, 3, 30, 30}
	if got, want := fmt.Sprint(ideal(due, 2, 10)), fmt.Sprint(loadgen.Samples{10, 10, 18, 18, 10, 10}); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := fmt.Sprint(ideal(due, 1, 10)), fmt.Sprint(loadgen.Samples{10, 19, 28, 37, 20, 30}); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

const appKeys = "url arrivals rate seed n failures requests_per_s latency_ms late_p99_ms own_cpu_ms turns"

func TestAppOpenLoop(t *testing.T) {
	t.Parallel()
	var seen [2]atomic.Int64
	var conns atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.RequestURI() == "/a?b=c" {
			seen[0].Add(1)
		} else if r.URL.Path == "/ready" && r.Close {
			seen[1].Add(1)
		}
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	const n = 300
	want := [2]int{}
	a := loadgen.NewArrivals(2000, false, 9, []int{4, 1})
	for range n {
		want[a.Next().Request]++
	}
	got := benchtest.JSON(t, appKeys+" paths ideal_ms", "app", server.URL, "--rate", "2000", "--count", fmt.Sprint(n),
		"--seed", "9", "--path", "/a?b=c=4", "--path", "/ready",
		"--ideal", "3", "--service", "2ms")
	if got["arrivals"] != "poisson" || benchtest.Number(t, got, "n") != n || benchtest.Number(t, got, "failures") != 0 ||
		conns.Load() != n {
		t.Errorf("%d connections, %v", conns.Load(), got)
	}
	for i, p := range got["paths"].([]any) {
		p := p.(map[string]any)
		if int(benchtest.Number(t, p, "n")) != want[i] || seen[i].Load() != int64(want[i]) {
			t.Errorf("%v; the server saw %d, want %d", p, seen[i].Load(), want[i])
		}
	}
	if best := got["ideal_ms"].(map[string]any); benchtest.Number(t, best, "p50") < 2 ||
		benchtest.Number(t, best, "mean") < 2 {
		t.Errorf("at best %v", best)
	}
}

func TestAppClosedLoopKeepsConnections(t *testing.T) {
	t.Parallel()
	var conns, requests atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1)%10 == 0 {
			w.Header().Set("Connection", "close")
		}
		w.Write(make([]byte, 50_000)) //nolint:errcheck // chunked
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	got := benchtest.JSON(t, appKeys, "app", server.URL, "--keep", "--count", "40")
	if got["arrivals"] != "closed" || benchtest.Number(t, got, "n") != 40 || benchtest.Number(t, got, "rate") != 0 {
		t.Error(got)
	}
	if n := conns.Load(); n != 4 {
		t.Errorf("%d connections, want 4", n)
	}
}

// TestAppFailures counts every response that is not correct, and no others.
func TestAppFailures(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/status":
			http.Error(w, "busy", http.StatusServiceUnavailable)
		case "/cut":
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "half") //nolint:errcheck
		case "/reset":
			panic(http.ErrAbortHandler)
		case "/hang":
			<-hang
		}
	}))
	defer server.Close()
	defer close(hang)
	for path, text := range map[string]string{"/status": "503", "/cut": "EOF", "/reset": "EOF",
		"/hang": "nothing received for 100ms"} {
		timeout := "1m"
		if path == "/hang" {
			timeout = "100ms"
		}
		out, errs, err := benchtest.Run(t, t.Context(), "app", server.URL+path, "--rate", "100", "--count", "3", "--timeout",
			timeout, "--json")
		if err == nil || !strings.Contains(out, `"failures": 3`) || !strings.Contains(out, `"n": 0`) ||
			!strings.Contains(errs, text) {
			t.Errorf("%s: %v\n%s%s", path, err, out, errs)
		}
	}
	out, errs, err := benchtest.Run(t, t.Context(), "app", "http://127.0.0.1:1/", "--rate", "100", "--count", "3",
		"--json")
	if err == nil || !strings.Contains(out, `"failures": 3`) || !strings.Contains(errs, "refused") {
		t.Errorf("nobody listens: %v\n%s%s", err, out, errs)
	}
}

// TestAppCountsFromTheSchedule has requests that wait for the only connection. The wait is part of their latency.
func TestAppCountsFromTheSchedule(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter,
		*http.Request) {
		time.Sleep(40 * time.Millisecond)
	}))
	defer server.Close()
	got := benchtest.JSON(t, appKeys, "app", server.URL, "--rate", "1000", "--arrivals", "constant", "--count", "5",
		"--clients", "1")
	// Due after 1 to 5 ms; responses after 41, 81 ms and so on, or later.
	if p50 := benchtest.Number(t, got["latency_ms"].(map[string]any), "p50"); p50 < 110 {
		t.Errorf("the third answer came after %v ms", p50)
	}
	if late := benchtest.Number(t, got, "late_p99_ms"); late < 150 {
		t.Errorf("the last request was sent %v ms late", late)
	}
}

func TestAppBadFlags(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"ftp://127.0.0.1/"}, {"https://127.0.0.1/"}, {"http://127.0.0.1/", "--rate", "-1"},
		{"http://127.0.0.1/", "--rate", "NaN"},
		{"http://127.0.0.1/", "--arrivals", "often"}, {"http://127.0.0.1/", "--clients", "100000"},
		{"http://127.0.0.1/", "--count", "-1"},
		{"http://127.0.0.1/", "--duration", "0"}, {"http://127.0.0.1/", "--path", "x"},
		{"http://127.0.0.1/", "--path", "/x=0"}, {"http://127.0.0.1/", "--path", "/x\r\ny"},
		{}, {"http://127.0.0.1/", "https://127.0.0.1"}, {"http://127.0.0.1/", "--turns", "0"},
		{"http://127.0.0.1/", "--turns", "1001"}, {"http://127.0.0.1/", "--turns", "100", "--duration", "900ms"},
		{"http://127.0.0.1/", "http://127.0.0.1/", "--count", "5000001"},
		{"http://127.0.0.1:1/", "--rate", "1", "--arrivals", "constant", "--duration", "50ms"},
		{"http://127.0.0.1/", "--turns", "5", "--count", "4"},
		{"http://127.0.0.1/", "--rate", "5", "--ideal", "2"},
		{"http://127.0.0.1/", "--ideal", "2", "--service", "1s"},
	} {
		if out, _, err := benchtest.Run(t, t.Context(), append([]string{"app"}, args...)...); err == nil {
			t.Errorf("%q: no error; %s", args, out)
		}
	}
}

func TestAppReport(t *testing.T) {
	t.Parallel()
	o := &options{rate: 27.5, arrivals: "poisson", seed: 1, workers: 2, service: 36 * time.Millisecond,
		duration: time.Second, timeout: time.Second, turns: 1, paths: []string{"/work", "/ready"}}
	servers, err := o.servers([]string{"http://user:secret@127.0.0.1:3000/work"})
	if err != nil {
		t.Fatal(err)
	}
	s := servers[0]
	s.latency, s.failed = []loadgen.Samples{{40e6, 36e6, 38e6}, {1e6}}, []int{0, 1}
	s.late, s.elapsed = loadgen.Samples{1e5, 2e5}, 2*time.Second
	s.failures.Add(io.EOF)
	s.ideal = ideal([]time.Duration{1e6, 2e6, 3e6, 90e6}, o.workers, o.service)
	var b bytes.Buffer
	if err := loadgen.WriteJSON(&b, o.summarize(s)); err != nil {
		t.Fatal(err)
	}
	const want = `{"url":"http://127.0.0.1:3000/work","arrivals":"poisson","rate":27.5,"seed":1,"n":4,"failures":1,"requests_per_s":2,` +
		`"latency_ms":{"mean":28.75,"p50":36,"p95":40,"p99":40,"max":40},"paths":[` +
		`{"path":"/work","n":3,"failures":0,"latency_ms":{"mean":38,"p50":38,"p95":40,"p99":40,"max":40}},` +
		`{"path":"/ready","n":1,"failures":1,"latency_ms":{"mean":1,"p50":1,"p95":1,"p99":1,"max":1}}],` +
		`"ideal_ms":{"mean":44.5,"p50":36,"p95":70,"p99":70,"max":70},"late_p99_ms":0.2,"own_cpu_ms":0,"turns":1}`
	if got := strings.Join(strings.Fields(b.String()), ""); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	b.Reset()
	o.summarize(s).print(&b)
	for _, s := range []string{"poisson arrivals, 27.5 requests a second", "4 (2.00/s), 1 failed",
		"mean 28.750  p50 36.000", "at best", "/ready"} {
		if !strings.Contains(b.String(), s) {
			t.Errorf("%q is missing in\n%s", s, b.String())
		}
	}
}

// TestAppTurns lets two servers get the same requests in turns.
func TestAppTurns(t *testing.T) {
	t.Parallel()
	var paths [2][]string
	var urls []string
	for i := range paths {
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			paths[i] = append(paths[i], r.URL.Path) // one client
		}))
		defer server.Close()
		urls = append(urls, server.URL)
	}
	args := append([]string{"app", "--path", "/a", "--path", "/b", "--count", "31", "--turns", "3"}, urls...)
	got := benchtest.JSON(t, "rows", args...)
	if len(got["rows"].([]any)) != 2 || len(paths[0]) != 31 || !slices.Equal(paths[0], paths[1]) {
		t.Errorf("requests %q and %q, want 31 equal ones; %v", paths[0], paths[1], got)
	}
}
