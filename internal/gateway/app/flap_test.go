package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	ossignal "os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// workerProcess is an application worker on a Unix socket, which replaces an existing one. Files beside the socket make
// it respond that it is not ready (".red"), or close the connections of checks (".mute"). SIGTERM ends it, once all
// that it has is answered.
func workerProcess(socket string) int {
	l, err := net.Listen("unix", socket+".new")
	if err == nil {
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		err = os.Rename(socket+".new", socket)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	there := func(name string) bool { _, err := os.Stat(socket + name); return err == nil }
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch ready := r.URL.Path == "/ready"; {
		case ready && there(".mute"):
			panic(http.ErrAbortHandler)
		case ready && there(".red"):
			http.Error(w, "no", http.StatusServiceUnavailable)
		default:
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, filepath.Base(socket))
		}
	})}
	ended, done := make(chan os.Signal, 1), make(chan bool)
	ossignal.Notify(ended, syscall.SIGTERM)
	go func() {
		<-ended
		_ = s.Shutdown(context.Background())
		close(done)
	}()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	<-done
	return 0
}

const rackApp = `run lambda { |env|
  socket = ENV["SOCKET"]
  if env["PATH_INFO"] == "/ready" && File.exist?(socket + ".mute")
    env["rack.hijack"].call.close
    next [200, {}, []]
  end
  env["rack.input"].read
  next [503, {}, ["no"]] if env["PATH_INFO"] == "/ready" && File.exist?(socket + ".red")
  [200, {"content-type" => "text/plain"}, [File.basename(socket)]]
}
`

// crewOf starts three workers as processes, and a proxy in front of them that knows that they are up. start starts one,
// again.
func crewOf(t *testing.T, o Options, puma bool) (f *front, sockets []string, start func(socket string) *exec.Cmd) {
	t.Helper()
	dir, err := os.MkdirTemp("", "ph") // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	start = func(socket string) *exec.Cmd {
		cmd, _, _ := process(t, "worker "+socket)
		return cmd
	}
	if puma {
		program, err := exec.LookPath("puma")
		if err != nil {
			t.Skip("*** Puma is not installed: it is NOT tested as a worker. ***")
		}
		app := writeFile(t, filepath.Join(dir, "config.ru"), rackApp)
		start = func(socket string) *exec.Cmd {
			cmd := exec.Command(program, "-q", "-w", "0", "-t", "1:1", "-b", "unix://"+socket, app)
			cmd.Env = append(os.Environ(), "SOCKET="+socket, "RACK_ENV=production")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			return cmd
		}
	}
	for i := range 3 {
		socket := filepath.Join(dir, fmt.Sprint("w", i))
		sockets = append(sockets, socket)
		o.Workers = append(o.Workers, WorkerOptions{Name: filepath.Base(socket), Address: "unix:" + socket, Slots: 1})
	}
	o.Health = Health{Path: "/ready", Interval: 20 * time.Millisecond, Timeout: patience, Failures: 2, Passes: 1}
	o.HeaderTimeout = time.Hour
	return newFront(t, o), sockets, start
}

// ask has clients ask for something all the time until end is called, which gives how many were answered, and what the
// first one met that was not.
func (f *front) ask(method string, clients int) (answered *atomic.Int64, end func() error) {
	answered = new(atomic.Int64)
	ctx, stop := context.WithCancel(context.Background())
	failures := make(chan error, clients)
	var asking sync.WaitGroup
	for range clients {
		asking.Go(func() {
			for ctx.Err() == nil {
				status, _, body, err := f.do(method, "/", strings.NewReader(strings.Repeat("x", 20_000)))
				if err != nil || status != 200 || !strings.HasPrefix(body, "w") {
					failures <- fmt.Errorf("after %d answers: %d %q, %w", answered.Load(), status, body, err)
					return
				}
				answered.Add(1)
			}
		})
	}
	return answered, func() error {
		stop()
		asking.Wait()
		select {
		case err := <-failures:
			return err
		default:
			return nil
		}
	}
}

// Workers whose checks change all the time, in both ways, one of them or all at once, fail no request. No more of them
// rest than may, each comes back by and by, and the log stays short.
func TestFlappingWorkers(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"process", "puma"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			var log logged
			f, sockets, start := crewOf(t, Options{Log: log.logger()}, kind == "puma")
			for _, socket := range sockets {
				start(socket)
			}
			until(t, "all are up", isState(f.Proxy, "+up +up +up"))
			began := time.Now()
			answered, end := f.ask(http.MethodPost, 6)
			pool := f.table.Load().pools[0]
			resting := func() (n int) {
				f.mu.Lock()
				defer f.mu.Unlock()
				for _, w := range pool.workers {
					if w.isResting {
						n++
					}
				}
				return n
			}
			some := func() { // requests are answered meanwhile
				t.Helper()
				n := answered.Load()
				until(t, "requests are answered", func() bool { return answered.Load() > n+10 })
			}
			set := func(name string, there bool, which ...int) {
				for _, i := range which {
					if there {
						writeFile(t, sockets[i]+name, "")
					} else if err := os.Remove(sockets[i] + name); err != nil {
						t.Error(err)
					}
				}
			}
			most := 0
			state := func(i int, want string) {
				t.Helper()
				until(t, fmt.Sprint("worker ", i, " is ", want),
					func() bool { most = max(most, resting()); return f.Workers()[i].State == want })
			}
			for round := range 3 {
				one := round % 3
				set(".red", true, one)
				state(one, "not ready")
				some()
				set(".red", false, one)
				state(one, "up")

				set(".mute", true, one)
				state(one, "down")
				some()
				set(".mute", false, one)
				state(one, "up")
			}
			set(".red", true, 0, 1, 2)
			for i := range 3 {
				state(i, "not ready")
			}
			some()
			set(".red", false, 0, 1, 2)
			for i := range 3 {
				state(i, "up")
			}
			if err := end(); err != nil {
				t.Error(err)
			}
			if most != 1 {
				t.Errorf("%d of 3 workers were out of service for not being ready; it should be 1", most)
			}
			if lines, may := len(log.all()), 3*logBurst*(2+int(time.Since(began)/time.Minute)); lines > may || lines == 0 {
				t.Errorf("the log has %d lines; it may have %d", lines, may)
			}
		})
	}
}

// Workers that are killed, replaced behind their sockets, or stopped, fail no request that may be sent again.
func TestWorkersAreReplaced(t *testing.T) {
	t.Parallel()
	f, sockets, start := crewOf(t, Options{}, false)
	var running []*exec.Cmd
	for _, socket := range sockets {
		running = append(running, start(socket))
	}
	until(t, "all are up", isState(f.Proxy, "+up +up +up"))
	answered, end := f.ask(http.MethodGet, 6)
	some := func() {
		t.Helper()
		n := answered.Load()
		until(t, "requests are answered", func() bool { return answered.Load() > n+20 })
	}
	served := func(i int) uint64 { return f.Workers()[i].Served }
	comes := func(i int) {
		t.Helper()
		n := served(i)
		until(t, fmt.Sprint("worker ", i, " is given requests again"),
			func() bool { return served(i) > n && f.Workers()[i].State == "up" })
	}
	for i, socket := range sockets {
		old := running[i]
		if err := old.Process.Kill(); err != nil { // the socket has no listener then
			t.Fatal(err)
		}
		_ = old.Wait()
		some()
		again := start(socket)
		comes(i)

		before, err := os.Stat(socket)
		if err != nil {
			t.Fatal(err)
		}
		next := start(socket) // in its place, and then it ends
		until(t, "the socket is another one", func() bool {
			now, err := os.Stat(socket)
			return err == nil && !os.SameFile(before, now)
		})
		replaced := served(i)
		until(t, "the new one has requests", func() bool { return served(i) > replaced+5 })
		if err := again.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := again.Wait(); err != nil {
			t.Errorf("the one that was replaced ended with %v", err)
		}
		comes(i)

		if err := next.Process.Signal(syscall.SIGSTOP); err != nil { // it takes connections, and answers nothing
			t.Fatal(err)
		}
		some()
		some()
		if err := next.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		comes(i)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}
