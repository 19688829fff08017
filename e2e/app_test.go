package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// workerSocket in the environment makes this program a worker of an application, on that socket, instead of running
// tests.
const workerSocket = "PACKHORSE_E2E_WORKER"

// appWorker serves until SIGTERM, and then finishes the requests that run.
func appWorker(socket string) int {
	_ = os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	h := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Millisecond)
		_, _ = fmt.Fprintln(w, filepath.Base(socket), r.URL.Path)
	})}
	ended, answered := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(ended, syscall.SIGTERM)
	go func() {
		<-ended
		_ = h.Shutdown(context.Background())
		close(answered)
	}()
	if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return 1
	}
	<-answered
	return 0
}

// keepWorker runs a worker, again each time that it ends, as a service manager does. Its process ID is in a file beside
// the socket.
func keepWorker(t *testing.T, socket string) {
	var mu sync.Mutex
	var running *exec.Cmd
	stopped := false
	start := func() *exec.Cmd {
		mu.Lock()
		defer mu.Unlock()
		if stopped {
			return nil
		}
		running = exec.Command(os.Args[0])
		running.Env = append(os.Environ(), workerSocket+"="+socket, "GORACE=atexit_sleep_ms=0")
		if err := running.Start(); err != nil {
			t.Error(err)
			return nil
		}
		pid := socket + ".new" // of this worker alone
		if err := errors.Join(os.WriteFile(pid, []byte(strconv.Itoa(running.Process.Pid)), 0o600),
			os.Rename(pid, socket+".pid")); err != nil {
			t.Error(err)
		}
		return running
	}
	ended := make(chan struct{})
	first := start()
	go func() {
		defer close(ended)
		for cmd := first; cmd != nil; cmd = start() {
			_ = cmd.Wait()
		}
	}()
	t.Cleanup(func() {
		mu.Lock()
		stopped = true
		if running != nil {
			_ = running.Process.Kill()
		}
		mu.Unlock()
		<-ended
	})
}

// TestApplication restarts three workers as docs/how-to/app.md has it, while clients ask all the time: no request
// fails.
func TestApplication(t *testing.T) {
	t.Parallel()
	home, err := os.MkdirTemp("", "ph") // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	var workers []string
	for _, name := range []string{"w0", "w1", "b"} {
		keepWorker(t, filepath.Join(home, name))
		workers = append(workers, strconv.Quote("unix:"+filepath.Join(home, name)))
	}
	config := filepath.Join(home, "packhorse.toml")
	text := fmt.Sprintf("root = %q\nstate = %q\n[http]\naddress = \"127.0.0.1:0\"\n[ops]\naddress = "+
		"\"\"\n[app]\nworkers = [%s]\nslots = 1\nhealth = \"/ready\"\n"+
		"", t.TempDir(),
		filepath.Join(home, ".local/state/packhorse/gateway"),
		strings.Join(workers, ", "))
	systemctl := "#!/bin/sh\nw=" + home +
		"/${2#app@}\nold=$(cat $w.pid)\nkill -TERM $old\nwhile [ \"$(cat $w.pid)\" = \"$old\" ]; do sleep 0.02; done\n"
	if err := errors.Join(os.WriteFile(config, []byte(text), 0o600), os.Mkdir(filepath.Join(home, "bin"), 0o700),
		os.WriteFile(filepath.Join(home, "bin", "systemctl"), []byte(systemctl), 0o700)); err != nil {
		t.Fatal(err)
	}
	p, err := startServer(home, append(gittest.Env(), "GORACE=atexit_sleep_ms=0"),
		[]string{"serve", "--config", config, "--log-format", "json"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.cmd.Process.Signal(syscall.SIGTERM)
		if err := p.wait(); err != nil || strings.Contains(p.logged(), "DATA RACE") {
			t.Errorf("the server ended: %v\n%s", err, p.logged())
		}
	})
	env := append(os.Environ(), "HOME="+home, "XDG_STATE_HOME=", "GORACE=atexit_sleep_ms=0",
		"PATH="+filepath.Join(home, "bin")+":"+binDir+":"+os.Getenv("PATH"))
	run := func(script string) string {
		t.Helper()
		cmd := exec.Command("sh", "-c", script)
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		return string(out)
	}
	pids := func() string {
		return run("cat " + home + "/w0.pid " + home + "/w1.pid " + home + "/b.pid | tr '\\n' ' '; cat " + home + "/*.pid")
	}
	run("packhorse undrain worker w0 --wait --timeout 1m && packhorse undrain worker w1 --wait --timeout 1m && " +
		"packhorse undrain worker b --wait --timeout 1m")
	before := pids()

	end := keepAsking(p.http + "/page")
	page, err := os.ReadFile("../docs/how-to/app.md")
	if err != nil {
		t.Fatal(err)
	}
	script := regexp.MustCompile("(?s)```sh\n(for w .*?)```").FindSubmatch(page)
	if script == nil {
		t.Fatal("docs/how-to/app.md has no script")
	}
	out := run(string(script[1]))
	answered, failure := end()
	if failure != nil || answered == 0 {
		t.Errorf("after %d answers: %v", answered, failure)
	}
	if strings.Count(out, ": drained, 0 requests running\n") != 3 ||
		strings.Count(out, ": up, 0 requests running\n")+strings.Count(out, ": up, 1 requests running\n") != 3 ||
		pids() == before {
		t.Errorf("the restart says\n%s", out)
	}
	if list := run("packhorse workers"); strings.Count(list, "  up ") != 3 {
		t.Errorf("workers:\n%s", list)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(p.logged()) {
		var r struct {
			Operation, Pool, Worker string
			Queue                   *float64 `json:"queue_ms"`
		}
		if json.Unmarshal([]byte(line), &r) == nil && r.Operation == "app" && r.Pool == "app" &&
			r.Queue != nil {
			seen[r.Worker] = true
		}
	}
	if len(seen) != 3 {
		t.Errorf("the log has requests at %v", seen)
	}
}

// keepAsking sends requests until end is called. The function end returns the number of good responses and the first
// error.
func keepAsking(url string) (end func() (int64, error)) {
	ctx, cancel := context.WithCancel(context.Background())
	var asking sync.WaitGroup
	var good atomic.Int64
	failures := make(chan error, 3)
	for range cap(failures) {
		asking.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for ctx.Err() == nil {
				response, err := client.Get(url)
				if err == nil {
					var text []byte
					text, err = io.ReadAll(response.Body)
					response.Body.Close()
					if err == nil && (response.StatusCode != http.StatusOK || !strings.HasSuffix(string(text), " /page\n")) {
						err = fmt.Errorf("%s: %q", response.Status, text)
					}
				}
				if err != nil {
					failures <- err
					return
				}
				good.Add(1)
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	return func() (int64, error) {
		cancel()
		asking.Wait()
		select {
		case err := <-failures:
			return good.Load(), err
		default:
			return good.Load(), nil
		}
	}
}
