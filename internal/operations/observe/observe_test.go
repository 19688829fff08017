package observe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
)

func get(t *testing.T, h http.Handler, method, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w.Code, w.Body.String()
}

func TestOps(t *testing.T) {
	t.Parallel()
	var draining atomic.Bool
	h := opsHandler(OpsOptions{Log: slog.New(slog.DiscardHandler), Registry: NewRegistry("v1"), Ready: func() error {
		if draining.Load() {
			return errors.New("draining")
		}
		return nil
	}})
	for _, test := range []struct {
		method, path string
		status       int
		want         string
	}{
		{"GET", "/", 200, "/metrics"},
		{"GET", "/metrics", 200, `packhorse_build_info{version="v1"} 1`},
		{"GET", "/metrics", 200, "go_goroutines "},
		{"GET", "/metrics", 200, "\ngo_cpu_classes_gc_total_cpu_seconds_total "}, // what bench matrix reads
		{"GET", "/metrics", 200, "\ngo_memstats_alloc_bytes_total "},
		{"GET", "/metrics", 200, "process_start_time_seconds "},
		{"GET", "/healthz", 200, "ok"},
		{"GET", "/readyz", 200, "ok"},
		{"GET", "/debug/pprof/", 200, "goroutine"},
		{"GET", "/debug/pprof/goroutine?debug=1", 200, "goroutine profile"},
		{"GET", "/nothing", 404, ""},
		{"POST", "/metrics", 405, ""},
	} {
		if status, body := get(t, h, test.method, test.path); status != test.status || !strings.Contains(body, test.want) {
			t.Errorf("%s %s: %d %.200s, want %d %s", test.method, test.path, status, body, test.status, test.want)
		}
	}
	draining.Store(true)
	if status, body := get(t, h, "GET", "/readyz"); status != 503 || body != "draining\n" {
		t.Errorf("readyz while draining: %d %s", status, body)
	}
	if status, _ := get(t, h, "GET", "/healthz"); status != 200 {
		t.Errorf("healthz while draining: %d", status)
	}
}

// TestOpenMetrics checks that a scraper that accepts OpenMetrics gets exemplars and the end mark of the format.
func TestOpenMetrics(t *testing.T) {
	t.Parallel()
	reg := NewRegistry("v1")
	seconds := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "packhorse_test_seconds", Help: "Seconds."})
	reg.MustRegister(seconds)
	seconds.(prometheus.ExemplarObserver).ObserveWithExemplar(1, prometheus.Labels{"request_id": "abc"})
	h := opsHandler(OpsOptions{Log: slog.New(slog.DiscardHandler), Registry: reg})
	for accept, want := range map[string]bool{"application/openmetrics-text; version=1.0.0": true, "text/plain": false,
		"": false} {
		r := httptest.NewRequest("GET", "/metrics", nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		body := w.Body.String()
		if strings.Contains(body, `# {request_id="abc"} 1`) != want || strings.HasSuffix(body, "# EOF\n") != want {
			t.Errorf("Accept %q: exemplars: %v, of %q", accept, !want, w.Header().Get("Content-Type"))
		}
	}
}

// TestOpsHasItsOwnMux checks that the listener does not serve handlers of the default mux.
func TestOpsHasItsOwnMux(t *testing.T) {
	old := http.DefaultServeMux
	http.DefaultServeMux = http.NewServeMux()
	defer func() { http.DefaultServeMux = old }()
	http.HandleFunc("/surprise", func(http.ResponseWriter, *http.Request) {})
	h := opsHandler(OpsOptions{Log: slog.New(slog.DiscardHandler), Registry: NewRegistry("")})
	if status, _ := get(t, h, "GET", "/surprise"); status != 404 {
		t.Errorf("got %d", status)
	}
}

func TestOpsServesUntilClosed(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ops := NewOps(OpsOptions{Log: slog.New(slog.DiscardHandler), Registry: NewRegistry("")})
	done := make(chan error, 1)
	go func() { done <- ops.Serve(l) }()
	resp, err := http.Get("http://" + l.Addr().String() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	for host, status := range map[string]int{"evil.example": 403, "localhost:9": 200, l.Addr().String(): 200} {
		request, err := http.NewRequest("GET", "http://"+l.Addr().String()+"/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Host = host
		resp, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != status {
			t.Errorf("a request for %s: %d, want %d", host, resp.StatusCode, status)
		}
	}
	check, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer check.Close()
	io.WriteString(check, "GET /healthz HTTP/1.0\r\n\r\n") // as HAProxy's option httpchk sends it
	if got, _ := io.ReadAll(check); !strings.HasPrefix(string(got), "HTTP/1.0 200 ") {
		t.Errorf("a health check without Host: %q", got)
	}
	if err := ops.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestLogger(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ level, format, want string }{
		{"info", "auto", `"msg":"shown"`}, // a buffer is not a terminal
		{"info", "json", `"msg":"shown"`},
		{"info", "text", "msg=shown"},
		{"error", "text", ""},
	} {
		var out bytes.Buffer
		level, err := ParseLevel(test.level)
		if err != nil {
			t.Fatal(err)
		}
		log, err := NewLogger(&out, level, test.format, false, strings.ToLower)
		if err != nil {
			t.Fatal(err)
		}
		log.Debug("hidden")
		log.Info("shown")
		if got := out.String(); !strings.Contains(got, test.want) || test.want == "" && got != "" ||
			strings.Contains(got, "hidden") {
			t.Errorf("%v logged %q", test, got)
		}
	}
	if _, err := ParseLevel("loud"); err == nil {
		t.Error("loud accepted")
	}
	if _, err := NewLogger(io.Discard, slog.LevelInfo, "xml", false, strings.ToLower); err == nil {
		t.Error("xml accepted")
	}
}

// TestLogIsRedacted checks that secrets are removed from texts of all forms.
func TestLogIsRedacted(t *testing.T) {
	for _, format := range []string{"json", "text"} {
		var out bytes.Buffer
		log, err := NewLogger(&out, slog.LevelInfo, format, false,
			func(s string) string { return strings.ReplaceAll(s, "secret", "*") })
		if err != nil {
			t.Fatal(err)
		}
		secret := errors.New("a secret")
		log.With("with", "a secret").WithGroup("group").Error("the secret", "string", "my secret", "error",
			fmt.Errorf("open: %w", secret), "list", []string{"one", "secret"},
			slog.Group("inner", "string", "secret"), "panic", any(secret), "number", 7)
		if got := out.String(); strings.Contains(got, "secret") || strings.Count(got, "*") != 7 ||
			!strings.Contains(got, "7") {
			t.Errorf("%s: %s", format, got)
		}
	}
}

// TestLogHidesNothing: what clients chose moves no terminal's cursor and turns no line around, in either format; JSON
// keeps it as it was.
func TestLogHidesNothing(t *testing.T) {
	t.Parallel()
	const name = "a\x1b[2J\u009b31m\u007f\u202e\u2066\ufeff\u2028\U000e0041\n\"} ä 日本 🐎"
	for _, format := range []string{"json", "text"} {
		var out bytes.Buffer
		log, err := NewLogger(&out, slog.LevelInfo, format, false, func(s string) string { return s })
		if err != nil {
			t.Fatal(err)
		}
		log.Info("request", "repository", name, "error", errors.New(name), "list", []string{name})
		line := strings.TrimSuffix(out.String(), "\n")
		if i := strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("%s: %q", format, line)
		}
		if format == "json" {
			var got struct {
				Repository, Error string
				List              []string
			}
			if err := json.Unmarshal([]byte(line), &got); err != nil || got.Repository != name || got.Error != name ||
				got.List[0] != name {
				t.Errorf("%v %q", err, got)
			}
			if !strings.Contains(line, "ä 日本 🐎") {
				t.Error(line)
			}
		}
	}
}

func TestTerminalLines(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 5, 4, 13, 14, 15, 0, time.Local)
	log := func(color bool, level slog.Level, message string, attrs ...any) string {
		var out bytes.Buffer
		redact := func(s string) string { return strings.ReplaceAll(s, "secret", "*") }
		logger, err := NewLogger(&out, slog.LevelInfo, "terminal", color, redact)
		if err != nil {
			t.Fatal(err)
		}
		r := slog.NewRecord(at, level, message, 0)
		r.Add(attrs...)
		if err := logger.With("with", 1).WithGroup("g").Handler().Handle(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	for _, test := range []struct{ got, want string }{
		{log(false, slog.LevelInfo, "hello", "a", "b c", "d", 2*time.Second),
			"13:14:15 INFO  hello with=1 g.a=\"b c\" g.d=2s\n"},
		{log(true, slog.LevelWarn, "hello"), "13:14:15 \x1b[33mWARN \x1b[0m hello with=1\n"},
		{log(true, slog.LevelError, "hello"), "13:14:15 \x1b[31;1mERROR\x1b[0m hello with=1\n"},
		{log(false, slog.LevelInfo, "a\x1b[2Jb\n", "k\u009b", "x\u202ey"),
			"13:14:15 INFO  a\\x1b[2Jb\\n with=1 g.k\\u009b=\"x\\u202ey\"\n"},
		{log(false, slog.LevelInfo, "token", "is", "secret"), "13:14:15 INFO  token with=1 g.is=*\n"},
	} {
		if test.got != test.want {
			t.Errorf("%q\nwant\n%q", test.got, test.want)
		}
	}
}

// A request is one short line.
func TestTerminalRequests(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		want  string
		attrs []any
	}{
		{" fetch team/app 200 12.3ms 1.5MiB pack=hit user=alice\n",
			[]any{"request", "AB", "operation", "fetch", "result", "ok", "repository", "team/app", "ms", 12.345,
				"transport", "http", "status", 200, "client", "127.0.0.1:1", "user", "alice", "pack", "hit", "bytes", 3 << 19}},
		{" lfs_batch team/app 200 1ms 20B objects_refused=2 reason=disk_full\n",
			[]any{"operation", "lfs_batch", "result", "ok", "repository", "team/app", "ms", 1.0, "status", 200, "objects", 3,
				"objects_refused", 2, "bytes", 20, "reason", "disk_full"}},
		{" page GET /-/search denied 401 1ms 20B error=\"authentication required\"\n",
			[]any{"operation", "page", "result", "denied", "repository", "", "ms", 1.0, "status", 401,
				"method", "GET", "path", "/-/search", "bytes", 20, "error", "authentication required"}},
	} {
		var out bytes.Buffer
		log, err := NewLogger(&out, slog.LevelInfo, "terminal", false, func(s string) string { return s })
		if err != nil {
			t.Fatal(err)
		}
		r := slog.NewRecord(time.Now(), slog.LevelInfo, "request", 0)
		r.AddAttrs(slog.Group("", test.attrs...))
		if err := log.Handler().Handle(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if _, got, _ := strings.Cut(out.String(), "INFO "); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}
