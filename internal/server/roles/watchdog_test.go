package roles

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/operations/watchdog"
)

// quietWatchdog sees nothing.
func quietWatchdog(t *testing.T) (w *watchdog.Watchdog, dir string) {
	dir = filepath.Join(t.TempDir(), "dumps")
	w = watchdog.Start(watchdog.Options{
		Dir: dir, Stall: time.Hour, Interval: time.Hour, Profile: time.Millisecond,
		Log: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(w.Close)
	return w, dir
}

// TestDumps checks dumps on request before and after the start of the watchdog.
func TestDumps(t *testing.T) {
	t.Parallel()
	w, dir := quietWatchdog(t)
	var d dumps
	if _, err := d.write(t.Context()); !fault.Is(err, fault.NotFound) ||
		!strings.Contains(err.Error(), "watchdog.enabled") {
		t.Errorf("dump without a watchdog: error = %v, want one that names the key", err)
	}
	d.set(w)
	if dump, err := d.write(t.Context()); err != nil || !strings.HasPrefix(dump.Dir, dir) {
		t.Errorf("dump = %+v, %v, want one in %s", dump, err, dir)
	}
}

// TestQuitMakesDump: SIGQUIT has a dump written.
func TestQuitMakesDump(t *testing.T) {
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
	end()
	<-stopped
}
