package roles

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/observe/watchdog"
	"github.com/packhorse-git/packhorse/internal/statedir"
)

// quietWatchdog sees nothing.
func quietWatchdog(t *testing.T) (w *watchdog.Watchdog, dir string) {
	dir = filepath.Join(t.TempDir(), "dumps")
	w = watchdog.Start(watchdog.Options{
		Dir: dir, Stall: time.Hour, Blocked: 1 << 30, Interval: time.Hour, Count: 10, MaxBytes: 1 << 30, Profile: time.Millisecond,
		Log: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(w.Close)
	return w, dir
}

// TestDumpHandler: who may ask for a dump, and how often.
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
	if status, text := ask(admin, "POST", dumpPath); status != 404 || !strings.Contains(text, "watchdog.enabled") {
		t.Errorf("without a watchdog: %d %s", status, text)
	}
	d.set(w)
	for _, test := range []struct {
		h                    http.Handler
		method, path, origin string
		status               int
		says                 string
	}{
		{admin, "GET", dumpPath, "", 405, "use POST"},
		{admin, "POST", "/nodes", "", 404, ""},
		{admin, "POST", dumpPath, "http://localhost", 403, "web pages"},
		{ops, "POST", dumpPath, "", 429, "less than"}, // the one above was asked for, if in vain
		{admin, "POST", dumpPath, "", 200, dir},
		{admin, "POST", dumpPath, "", 200, dir},
	} {
		header := []string{}
		if test.origin != "" {
			header = []string{"Origin", test.origin}
		}
		if status, text := ask(test.h, test.method, test.path, header...); status != test.status || !strings.Contains(text, test.says) {
			t.Errorf("%s %s from %q: %d %s, want %d %s", test.method, test.path, test.origin, status, text, test.status, test.says)
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
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if list, _ := filepath.Glob(filepath.Join(dir, "*-signal-*[0-9]")); len(list) == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no dump")
		}
	}
	for range 3 {
		signals <- statedir.DumpSignal
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if list, _ := filepath.Glob(filepath.Join(dir, "*-asked-*[0-9]")); len(list) > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no dump")
		}
	}
	end()
	<-stopped
}

// TestDebugDumpFindsNobody: what it says where no server runs, and that it sends no signal to who is not one.
func TestDebugDumpFindsNobody(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	say := func(args ...string) (int, string) {
		var out bytes.Buffer
		code := Main(context.Background(), Env{Args: append([]string{"debug", "dump", "--patience", "10ms"}, args...), Stdout: &out, Stderr: &out})
		return code, out.String()
	}
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{nil, exitUsage, "which server?"},
		{[]string{"--ops", "127.0.0.1:1", "--state", dir}, exitUsage, "give one"},
		{[]string{"--ops", "nowhere"}, exitUsage, "--ops"},
		{[]string{"--ops", "127.0.0.1:1"}, exitFailed, "127.0.0.1:1"},
		{[]string{"--state", dir}, exitFailed, "no server runs with the state directory " + dir},
		{[]string{"--root", dir}, exitFailed, "no server runs with the state directory " + filepath.Join(dir, ".packhorse")},
	} {
		if code, text := say(test.args...); code != test.code || !strings.Contains(text, test.says) {
			t.Errorf("%q: %d %s, want %d %s", test.args, code, text, test.code, test.says)
		}
	}

	stranger := exec.Command("sleep", "600")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer stranger.Wait()
	defer stranger.Process.Kill()
	state, err := statedir.Open(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("what processes have open is not told here")
	}
	for dumps, says := range map[string]string{"/nowhere": "not the one that has the state directory open", "": "a signal would end it"} {
		if err := state.Write(statedir.Server{PID: stranger.Process.Pid, Role: config.RoleServe, Dumps: dumps}); err != nil {
			t.Fatal(err)
		}
		if code, text := say("--state", filepath.Join(dir, "state")); code != exitFailed || !strings.Contains(text, says) {
			t.Errorf("%d %s, want %s", code, text, says)
		}
	}
	if err := stranger.Process.Signal(syscall.Signal(0)); err != nil {
		t.Error("the stranger is gone")
	}
}
