package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// served is a proxy, and a server in front of it.
func served(t *testing.T, o Options) (*Proxy, *httptest.Server) {
	t.Helper()
	f := newFront(t, o)
	return f.Proxy, f.server
}

// back is a worker on a socket that can be not ready, stopped and started.
type back struct {
	t       *testing.T
	socket  string
	red     atomic.Bool
	running atomic.Int64
	most    atomic.Int64 // that ran at the same time
	hold    chan struct{}

	mu     sync.Mutex
	server *http.Server
	done   chan error
}

func newBack(t *testing.T, socket string) *back {
	b := &back{t: t, socket: socket}
	b.start()
	t.Cleanup(b.stop)
	return b
}

func (b *back) start() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = os.Remove(b.socket)
	l, err := net.Listen("unix", b.socket)
	if err != nil {
		b.t.Fatal(err)
	}
	b.server, b.done = &http.Server{Handler: b}, make(chan error, 1)
	go func(s *http.Server, done chan error) { done <- s.Serve(l) }(b.server, b.done)
}

// stop ends the worker after its running requests.
func (b *back) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.server == nil {
		return
	}
	_ = b.server.Shutdown(context.Background())
	<-b.done
	b.server = nil
}

func (b *back) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := b.running.Add(1)
	defer b.running.Add(-1)
	for most := b.most.Load(); n > most && !b.most.CompareAndSwap(most, n); most = b.most.Load() {
	}
	switch {
	case r.URL.Path == "/ready" && b.red.Load():
		http.Error(w, "blackout", http.StatusServiceUnavailable)
	case r.URL.Path == "/hold":
		<-b.hold
	case r.URL.Path == "/work":
		time.Sleep(2 * time.Millisecond)
		fallthrough
	default:
		_, _ = io.WriteString(w, filepath.Base(b.socket))
	}
}

// backs starts n workers and gives the options for them.
func backs(t *testing.T, n int) (list []*back, o Options) {
	t.Helper()
	dir, err := os.MkdirTemp("", "ph")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for i := range n {
		name := fmt.Sprint("w", i)
		b := newBack(t, filepath.Join(dir, name))
		list = append(list, b)
		o.Workers = append(o.Workers, WorkerOptions{Name: name, Address: "unix:" + b.socket, Slots: 1})
	}
	o.Health = Health{Path: "/ready", Interval: 20 * time.Millisecond, Timeout: time.Minute, Failures: 2, Passes: 2}
	o.Routing.Queue = balance.Limits{Queue: 1000, Wait: time.Minute}
	return list, o
}

// until waits for a condition.
func until(t *testing.T, what string, so func() bool) {
	t.Helper()
	gittest.WaitFor(t, what, so)
}

// states are those of all workers, in a line.
func states(p *Proxy) string {
	var list []string
	for _, s := range p.Workers() {
		given := "-"
		if s.Given {
			given = "+"
		}
		list = append(list, given+s.State)
	}
	return strings.Join(list, " ")
}

func isState(p *Proxy, want string) func() bool { return func() bool { return states(p) == want } }

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	b, o := backs(t, 3)
	p, s := served(t, o)
	until(t, "all are up", isState(p, "+up +up +up"))

	b[0].red.Store(true)
	until(t, "w0 is drained", isState(p, "-not ready +up +up"))
	before := p.Workers()[0].Served
	for range 20 {
		if status, text := get(t, s.URL); status != 200 || text == "w0" {
			t.Fatal(status, text)
		}
	}
	if now := p.Workers()[0].Served; now != before {
		t.Errorf("w0 was given %d requests", now-before)
	}

	b[1].red.Store(true) // beyond the share: it answers, and goes on
	until(t, "w1 goes on", isState(p, "-not ready +not ready +up"))
	b[0].red.Store(false)
	until(t, "w1 comes next", isState(p, "+up -not ready +up"))
	b[1].red.Store(false)
	until(t, "all are back", isState(p, "+up +up +up"))
}

func TestDrain(t *testing.T) {
	t.Parallel()
	b, o := backs(t, 3)
	o.Blackout = 50 * time.Millisecond
	p, s := served(t, o)
	until(t, "all are up", isState(p, "+up +up +up"))
	b[0].hold = make(chan struct{})
	p.Workers()
	// w0 is busy for as long as it is held.
	for _, name := range []string{"w1", "w2"} {
		if _, err := p.Drain(name, true); err != nil {
			t.Fatal(err)
		}
	}
	held := make(chan string, 1)
	go func() {
		response, err := http.Get(s.URL + "/hold")
		if err != nil {
			held <- err.Error()
			return
		}
		response.Body.Close()
		held <- response.Status
	}()
	until(t, "w0 is busy", func() bool { return p.Workers()[0].InFlight == 1 })
	for _, name := range []string{"w1", "w2"} {
		if _, err := p.Undrain(name); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "all are up again", isState(p, "+up +up +up"))

	if _, err := p.Drain("w0", false); err != nil {
		t.Fatal(err)
	}
	if got := states(p); got != "-draining +up +up" {
		t.Errorf("while w0 has a request: %s", got)
	}
	_, err := p.Drain("w1", false)
	if !fault.Is(err, fault.Exhausted) || !strings.Contains(err.Error(),
		"w1 is not drained: a third of the pool \"app\", 1 of 3 workers, may be out of service") ||
		!strings.Contains(err.Error(), "wait for w0") {
		t.Errorf("a second drain: %v", err)
	}
	if _, err := p.Drain("w0", false); err != nil {
		t.Errorf("again: %v", err)
	}
	if status, text := get(t, s.URL); status != 200 || text == "w0" {
		t.Error(status, text)
	}
	close(b[0].hold)
	if got := <-held; got != "200 OK" {
		t.Errorf("what ran: %s", got)
	}
	until(t, "w0 may go", isState(p, "-drained +up +up"))
	b[0].stop()
	b[0].start()
	if _, err := p.Undrain("w0"); err != nil {
		t.Fatal(err)
	}
	until(t, "w0 is back", isState(p, "+up +up +up"))
	if _, err := p.Drain("w9", false); !fault.Is(err, fault.NotFound) || !strings.Contains(err.Error(), "w0, w1, w2") {
		t.Errorf("an unknown worker: %v", err)
	}
}

func TestNoWorker(t *testing.T) {
	t.Parallel()
	b, o := backs(t, 1)
	p, s := served(t, o)
	until(t, "it is up", isState(p, "+up"))
	b[0].stop()
	until(t, "it is down", isState(p, "-down"))
	response, err := http.Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != 503 || response.Header.Get("Retry-After") == "" ||
		string(text) != "no application worker can be reached; try again\n" ||
		!strings.HasPrefix(response.Header.Get("Content-Type"), "text/plain") {
		t.Errorf("%s %v %q %v", response.Status, response.Header, text, err)
	}
	b[0].start() // the socket is another one
	until(t, "it is back", isState(p, "+up"))
	if status, text := get(t, s.URL); status != 200 {
		t.Error(status, text)
	}
}

// load sends requests until end is called. end returns the number of responses and the first error.
func load(t *testing.T, url string, clients int) (end func() (int64, error)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	var answered atomic.Int64
	var wrong atomic.Pointer[error]
	for range clients {
		wait.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for ctx.Err() == nil {
				response, err := client.Get(url)
				if err == nil {
					_, err = io.Copy(io.Discard, response.Body)
					response.Body.Close()
					if err == nil && response.StatusCode != 200 {
						err = errors.New(response.Status)
					}
				}
				if err != nil {
					wrong.CompareAndSwap(nil, &err)
					return
				}
				answered.Add(1)
			}
		})
	}
	return func() (int64, error) {
		cancel()
		wait.Wait()
		if err := wrong.Load(); err != nil {
			return answered.Load(), *err
		}
		return answered.Load(), nil
	}
}

// All workers are restarted, one after the other, under load: no request fails, and no worker is given more than its
// slots.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	b, o := backs(t, 3)
	o.Blackout = 10 * time.Millisecond
	p, s := served(t, o)
	until(t, "all are up", isState(p, "+up +up +up"))
	end := load(t, s.URL+"/work", 6)
	for i, w := range b {
		name := fmt.Sprint("w", i)
		until(t, name+" is drained", func() bool { _, err := p.Drain(name, false); return err == nil })
		until(t, name+" may go", func() bool { return p.Workers()[i].State == "drained" })
		w.stop()
		w.start()
		if _, err := p.Undrain(name); err != nil {
			t.Fatal(err)
		}
		until(t, name+" is back", func() bool { return p.Workers()[i].State == "up" })
	}
	n, err := end()
	if err != nil || n == 0 {
		t.Errorf("after %d answers: %v", n, err)
	}
	for i, w := range b {
		if most := w.most.Load(); most > 1 {
			t.Errorf("w%d had %d requests at a time", i, most)
		}
	}
}

// A request that got a slot just before its worker was drained goes elsewhere: the worker may be stopped by now.
func TestDrainBeforeRequest(t *testing.T) {
	t.Parallel()
	f := newFront(t, Options{Workers: one("unix:/nowhere")})
	pool := f.table.Load().pools[0]
	got, err := pool.scheduler.Acquire(t.Context(), balance.Work{})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := f.Drain("w0", true); err != nil || s.State != "drained" {
		t.Fatalf("Drain = %+v, %v, want drained", s, err)
	}
	if s := f.seatOf(pool, got); s != nil {
		t.Errorf("seat = %+v, want none", s)
	}
	got.Done(balance.Cut)
}

// Workers and pools change under load: no request fails.
func TestReload(t *testing.T) {
	t.Parallel()
	_, o := backs(t, 4)
	workers := o.Workers
	o.Workers = workers[:2]
	p, s := served(t, o)
	until(t, "both are up", isState(p, "+up +up"))
	end := load(t, s.URL+"/work", 4)
	queue := o.Routing.Queue
	two := Routing{Queue: queue, Pools: []PoolOptions{{Name: "app", Share: 50, Workers: workers[:2]},
		{Name: "b", Share: 50, Workers: workers[2:]}}}
	more := Routing{Queue: queue,
		Pools: []PoolOptions{{Name: "app", Share: 100, Workers: []WorkerOptions{workers[1], workers[2],
			{Name: "w0", Address: workers[0].Address, Slots: 2}}}}}
	for i := range 20 {
		r := two
		if i%2 == 1 {
			r = more
		}
		if err := p.Set(r); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	bad := Routing{Pools: []PoolOptions{{Name: "app", Workers: []WorkerOptions{{Name: "x", Address: "ftp://x"}}}}}
	if err := p.Set(bad); err == nil {
		t.Error("a bad address is taken")
	}
	if n, err := end(); err != nil || n == 0 {
		t.Errorf("after %d answers: %v", n, err)
	}
	if got := p.Workers(); len(got) != 3 || got[2].Name != "w0" || got[2].Slots != 2 {
		t.Errorf("the workers are %+v", got)
	}
}

func TestFullQueue(t *testing.T) {
	t.Parallel()
	_, o := backs(t, 1)
	o.Routing.Queue = balance.Limits{Queue: 0, Wait: time.Minute}
	o.Health.Interval = 0
	f := newFront(t, o)
	p, s := f.Proxy, f.server
	first, err := takeSlot(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != 503 || response.Header.Get("Retry-After") == "" {
		t.Errorf("%s %v", response.Status, response.Header)
	}
	if r := <-f.records; r.Pool != "app" || r.Worker != "" || r.Status != 503 {
		t.Errorf("the log does not know whose request it was: %+v", r)
	}
	if n := testutil.ToFloat64(f.Metrics.answers.WithLabelValues("app", "5xx")); n != 0 {
		t.Errorf("%v answers of workers are counted", n)
	}
	first.done(balance.OK)
	if n := testutil.ToFloat64(p.Metrics.refused.WithLabelValues("app", "full")); n != 1 {
		t.Errorf("%v were refused", n)
	}
}
