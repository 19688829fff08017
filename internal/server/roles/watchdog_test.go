package roles

import (
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/operations/watchdog"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
)

// quietWatchdog sees nothing.
func quietWatchdog(t *testing.T) (w *watchdog.Watchdog, dir string) {
	dir = filepath.Join(t.TempDir(), "dumps")
	w = watchdog.Start(watchdog.Options{
		Dir: dir, Stall: time.Hour, Interval: time.Hour, MaxBytes: 1 << 30, Profile: time.Millisecond,
		Log: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(w.Close)
	return w, dir
}

// TestDumpHandler checks the permission and the interval of requests for dumps.
func TestDumpHandler(t *testing.T) {
	t.Parallel()
	w, dir := quietWatchdog(t)
	var d dumps
	ask := func(method, origin string) (int, string) {
		r := httptest.NewRequest(method, watchdog.DumpPath, nil)
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		answer := httptest.NewRecorder()
		d.serveHTTP(answer, r)
		return answer.Code, answer.Body.String()
	}
	if _, err := d.write(t.Context(), 0); !fault.Is(err, fault.NotFound) ||
		!strings.Contains(err.Error(), "watchdog.enabled") {
		t.Errorf("dump without a watchdog: error = %v, want one that names the key", err)
	}
	d.set(w)
	for range 2 {
		if dump, err := d.write(t.Context(), 0); err != nil || !strings.HasPrefix(dump.Dir, dir) {
			t.Errorf("dump = %+v, %v, want one in %s", dump, err, dir)
		}
	}
	for _, test := range []struct {
		method, origin string
		status         int
		want           string
	}{
		{"GET", "", 405, "use POST"},
		{"POST", "http://localhost", 403, "web pages"},
		{"POST", "", 429, "less than"},
	} {
		if status, text := ask(test.method, test.origin); status != test.status || !strings.Contains(text, test.want) {
			t.Errorf("%s from %q = %d %s, want %d %s", test.method, test.origin, status, text, test.status, test.want)
		}
	}
	d.last = time.Time{}
	if status, text := ask("POST", ""); status != 200 || !strings.Contains(text, dir) {
		t.Errorf("POST = %d %s, want 200 %s", status, text, dir)
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
