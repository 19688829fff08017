package observe

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestOpsIsBounded checks that silent connections and too many scrapes do not delay health checks.
func TestOpsIsBounded(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	began, goOn := make(chan struct{}), make(chan struct{})
	slow := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { began <- struct{}{}; <-goOn })
	ops := NewOps(OpsOptions{Log: slog.New(slog.DiscardHandler), Registry: NewRegistry(""),
		Ready: func() error { return nil }, More: map[string]http.Handler{"/slow": slow}})
	done := make(chan error, 1)
	go func() { done <- ops.Serve(l) }()
	defer func() {
		at, cancel := context.WithCancel(context.Background()) // connections without a whole header would be waited for
		cancel()
		if err := ops.Close(at); err != nil {
			t.Error(err)
		}
		<-done
	}()
	dial := func(request string) net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		return c
	}
	status := func(path string) string {
		t.Helper()
		c := dial("GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		c.SetDeadline(time.Now().Add(time.Minute))
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return strings.TrimSpace(line)
	}
	for range opsRequests {
		dial("GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
	}
	for range opsRequests {
		<-began
	}
	for range opsConnections + 10 {
		dial("GET /metrics HTTP/1.1\r\n") // no end
	}
	for path, want := range map[string]string{"/healthz": "200", "/readyz": "200", "/metrics": "503", "/slow": "503"} {
		if got := status(path); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	close(goOn)
	gittest.WaitFor(t, "/metrics responds with 200 after the other requests have ended", func() bool {
		return strings.Contains(status("/metrics"), "200")
	})
}

// TestPagesTakeNoProfiles: a page that a browser shows starts no profile, on whatever listener; who follows a link on
// our own page does.
func TestPagesTakeNoProfiles(t *testing.T) {
	t.Parallel()
	h := opsHandler(OpsOptions{Log: slog.New(slog.DiscardHandler), Registry: NewRegistry(""),
		More: map[string]http.Handler{"GET /debug/top": http.NotFoundHandler()}})
	for _, test := range []struct {
		path, header, value string
		status              int
	}{
		{"/debug/pprof/goroutine?debug=1", "Sec-Fetch-Site", "cross-site", 403},
		{"/debug/pprof/goroutine?debug=1", "Origin", "http://evil.example", 403},
		{"/debug/pprof/goroutine?debug=1", "Sec-Fetch-Site", "same-origin", 200},
		{"/debug/pprof/goroutine?debug=1", "Sec-Fetch-Site", "none", 200},
		{"/debug/pprof/", "Sec-Fetch-Site", "same-site", 403}, {"/debug/top", "Sec-Fetch-Site", "cross-site", 403},
		{"/debug/top", "Accept", "*/*", 404},
		{"/healthz", "Sec-Fetch-Site", "cross-site", 200}, {"/metrics", "Sec-Fetch-Site", "cross-site", 200},
	} {
		r := httptest.NewRequest("GET", test.path, nil)
		r.Header.Set(test.header, test.value)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != test.status {
			t.Errorf("%s with %s %s: %d, want %d", test.path, test.header, test.value, w.Code, test.status)
		}
	}
}
