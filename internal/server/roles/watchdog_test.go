package roles

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/operations/watchdog"
	"github.com/packhorse-git/packhorse/internal/server/adminapi"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
)

// quietWatchdog sees nothing.
func quietWatchdog(t *testing.T) (w *watchdog.Watchdog, dir string) {
	dir = filepath.Join(t.TempDir(), "dumps")
	w = watchdog.Start(watchdog.Options{
		Dir: dir, Stall: time.Hour, Blocked: 1 << 30, Interval: time.Hour, Count: 10, MaxBytes: 1 << 30,
		Profile: time.Millisecond,
		Log:     slog.New(slog.DiscardHandler),
	})
	t.Cleanup(w.Close)
	return w, dir
}

// TestDumpHandler checks the permission and the interval of requests for dumps.
func TestDumpHandler(t *testing.T) {
	t.Parallel()
	w, dir := quietWatchdog(t)
	var d dumps
	admin, ops := d.within(nil), d.handler(time.Hour)
	ask := func(h http.Handler, method, path string, header ...string) (int, string) {
		r := httptest.NewRequest(method, path, nil)
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, r)
		return answer.Code, answer.Body.String()
	}
	if status, text := ask(admin, "POST", adminapi.DumpPath); status != 404 ||
		!strings.Contains(text, "watchdog.enabled") {
		t.Errorf("without a watchdog: status = %d, text = %s, want 404 and the key", status, text)
	}
	d.set(w)
	for _, test := range []struct {
		h                    http.Handler
		method, path, origin string
		status               int
		says                 string
	}{
		{admin, "GET", adminapi.DumpPath, "", 405, "use POST"},
		{admin, "POST", "/nodes", "", 404, ""},
		{admin, "POST", adminapi.DumpPath, "http://localhost", 403, "web pages"},
		{ops, "POST", adminapi.DumpPath, "", 429, "less than"}, // the one above was asked for, if in vain
		{admin, "POST", adminapi.DumpPath, "", 200, dir},
		{admin, "POST", adminapi.DumpPath, "", 200, dir},
	} {
		header := []string{}
		if test.origin != "" {
			header = []string{"Origin", test.origin}
		}
		if status, text := ask(test.h, test.method, test.path, header...); status != test.status ||
			!strings.Contains(text, test.says) {
			t.Errorf("%s %s from %q: %d %s, want %d %s", test.method, test.path, test.origin, status, text, test.status,
				test.says)
		}
	}
}

// TestQuitsMakeDumps: each signal has a dump written, and however many ask for one at once, nothing ends.
func TestQuitsMakeDumps(t *testing.T) {
	t.Parallel()
	w, dir := quietWatchdog(t)
	signals := make(chan os.Signal)
	stopped := make(chan struct{})
	end := followQuits(Process{Quits: func() (<-chan os.Signal, func()) { return signals, func() { close(stopped) } }}, w)
	signals <- syscall.SIGQUIT
	gittest.WaitFor(t, "the signal writes a dump", func() bool {
		list, _ := filepath.Glob(filepath.Join(dir, "*-signal-*[0-9]"))
		return len(list) == 1
	})
	for range 3 {
		signals <- statedir.DumpSignal
	}
	gittest.WaitFor(t, "the signal writes a dump", func() bool {
		list, _ := filepath.Glob(filepath.Join(dir, "*-asked-*[0-9]"))
		return len(list) > 0
	})
	end()
	<-stopped
}
