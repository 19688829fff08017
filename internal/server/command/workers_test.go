package command

import (
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/gateway/app"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	"github.com/packhorse-git/packhorse/internal/server/adminapi"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

// serveWorkers answers on an admin socket for an application with these workers.
func serveWorkers(t *testing.T, state string, workers ...string) {
	t.Helper()
	cfg := config.DefaultConfig()
	cfg.State, cfg.App.Workers, cfg.App.Health = state, workers, "/"
	o, err := cfg.App.Options(cfg)
	if err != nil {
		t.Fatal(err)
	}
	o.Health.Interval, o.Blackout = 20*time.Millisecond, 10*time.Millisecond
	o.Metrics, o.Log = app.NewMetrics(nil), slog.New(slog.DiscardHandler)
	o.Caller = func(netip.Addr) balance.Caller { return "" }
	proxy, err := app.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	serveAdmin(t, state, &adminapi.Service{App: proxy, Drain: cfg.App.Drain.Duration})
}

func TestWorkerCommands(t *testing.T) {
	t.Parallel()
	state := socketDir(t)
	appWorker(t, state+"/w0.sock")
	ready := appWorker(t, state+"/w1.sock")
	serveWorkers(t, state, "unix:"+state+"/w0.sock", "unix:"+state+"/w1.sock")
	main := func(line string) (int, string, string) {
		return runMain(append(strings.Fields(line), "--state", state)...)
	}

	for _, w := range []string{"w0", "w1"} { // they are up at some time
		if code, out, errs := main("undrain worker " + w + " --wait --timeout 1m"); code != 0 ||
			out != w+": up, 0 requests running\n" {
			t.Fatalf("%d %q %q", code, out, errs)
		}
	}
	if code, out, _ := main("workers"); code != 0 || !strings.HasPrefix(out,
		"WORKER  POOL  STATE  RUNNING  SLOTS  SERVED  FAILED  ADDRESS\nw0      app   up     0 ") {
		t.Errorf("workers: %d\n%s", code, out)
	}
	if _, out, _ := runMain("__complete", "drain", "worker", "--state", state, ""); !strings.HasPrefix(out, "w0\nw1\n") {
		t.Errorf("names are completed with %q", out)
	}
	if code, out, errs := main("drain worker w0 --wait --timeout 1m"); code != 0 ||
		out != "w0: drained, 0 requests running\n" {
		t.Errorf("drain: %d %q %q", code, out, errs)
	}
	if code, _, errs := main("drain worker w1"); code != exitFailed || !strings.Contains(errs, "w1 is not drained: ") {
		t.Errorf("beyond the share: %d %q", code, errs)
	}
	waiting := make(chan string, 1)
	go func() {
		code, out, errs := main("drain worker w1 --wait --timeout 1m")
		if code != 0 || !strings.HasPrefix(errs, "packhorse: waiting: ") && !strings.HasPrefix(errs, "waiting: ") {
			out += errs
		}
		waiting <- out
	}()
	if code, out, errs := main("undrain worker w0 --wait --timeout 1m"); code != 0 ||
		out != "w0: up, 0 requests running\n" {
		t.Errorf("undrain: %d %q %q", code, out, errs)
	}
	if out := <-waiting; !strings.HasPrefix(out, "w1: drained, 0 requests running\n") {
		t.Errorf("its turn came: %q", out)
	}
	ready.Store(false)
	if code, out, errs := main("undrain worker w1 --wait --timeout 50ms"); code != exitFailed ||
		!strings.Contains(errs, "w1 is ") {
		t.Errorf("one that is not ready: %d %q %q", code, out, errs)
	}
	if code, out, errs := main("drain worker w0 --force"); code != 0 {
		t.Errorf("by force: %d %q %q", code, out, errs)
	}
	if code, _, errs := main("drain worker w9"); code != exitFailed ||
		!strings.Contains(errs, `application worker "w9" does not exist: known are w0, w1`) {
		t.Errorf("an unknown worker: %d %q", code, errs)
	}
	code, out, _ := main("workers --json")
	var list []adminapi.WorkerStatus
	if err := json.Unmarshal([]byte(out), &list); code != 0 || err != nil || len(list) != 2 || list[0].Name != "w0" ||
		list[0].Given {
		t.Errorf("workers --json: %d %v\n%s", code, err, out)
	}
}

func TestNoApplication(t *testing.T) {
	t.Parallel()
	state := socketDir(t)
	serveAdmin(t, state, &adminapi.Service{})
	if code, _, errs := runMain("workers", "--state", state); code != exitFailed ||
		!strings.Contains(errs, "there is no application") {
		t.Errorf("workers = %d, %q, want %d and the error of a missing application", code, errs, exitFailed)
	}
}

// appWorker answers health checks on a socket. The flag is its readiness.
func appWorker(t *testing.T, socket string) (ready *atomic.Bool) {
	t.Helper()
	ready = new(atomic.Bool)
	ready.Store(true)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	h := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !ready.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, filepath.Base(socket))
	})}
	done := make(chan error, 1)
	go func() { done <- h.Serve(l) }()
	t.Cleanup(func() {
		h.Close()
		<-done
	})
	return ready
}
