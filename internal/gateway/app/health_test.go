package app

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// Each letter is a check (p passed, r refused, d no response). The letters below are the states after the checks.
func TestVitals(t *testing.T) {
	t.Parallel()
	h := &Health{Failures: 3, Passes: 2}
	names := map[health]byte{starting: '?', up: 'U', unready: 'R', down: 'D'}
	for checks, want := range map[string]string{
		"ppp":      "UUU",
		"pddpddd":  "UUUUUUD",
		"d":        "D",
		"r":        "R",
		"prpp":     "URRU",
		"pdddpdpp": "UUUDDDDU",
		"prddd":    "URRRD",
	} {
		var v vitals
		var got strings.Builder
		for _, check := range []byte(checks) {
			v.record(map[byte]result{'p': passed, 'r': refused, 'd': unanswered}[check], "why", h)
			got.WriteByte(names[v.health])
		}
		if got.String() != want {
			t.Errorf("states after checks %s = %s, want %s", checks, &got, want)
		}
	}
}

// logged counts lines.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(p))
	return len(p), nil
}

func (l *logged) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.lines...)
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// A worker that changes all the time has a few log lines in a minute.
func TestUnstableWorkersAreLoggedSparsely(t *testing.T) {
	t.Parallel()
	var log logged
	p, err := New(Options{Workers: one("unix:/nowhere"), Log: log.logger()})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	pool := p.table.Load().pools[0]
	w, now := pool.workers[0], time.Unix(1e9, 0)
	p.now = func() time.Time { return now }
	p.Health.Failures, p.Health.Passes = 1, 1
	const minutes, perMinute = 60, 240
	for i := range minutes * perMinute {
		p.record(w, []result{passed, refused, unanswered}[i%3], "why")
		now = now.Add(time.Minute / perMinute)
	}
	if n := len(log.all()); n > minutes*logBurst+logBurst || n < minutes {
		t.Errorf("log lines in an hour = %d, want from %d to %d", n, minutes, minutes*logBurst+logBurst)
	}
}

// Checks of busy workers wait for a slot. They do not count as requests, take no place in the queue, and come before
// the requests in it.
func TestChecksAreNoRequests(t *testing.T) {
	t.Parallel()
	const workers = 4
	b, o := backs(t, workers)
	o.Routing.Queue = balance.Limits{Queue: 1}
	o.Health.Interval = time.Millisecond
	p, _ := served(t, o)
	until(t, "all are up", isState(p, "+up +up +up +up"))
	var seats []*seat
	for range workers { // a check may have a place at this moment
		until(t, "there is a place", func() bool {
			s, err := takeSlot(t.Context(), p)
			if err == nil {
				seats = append(seats, s)
			}
			return err == nil
		})
	}
	scheduler := p.table.Load().pools[0].scheduler
	until(t, "all checks wait", func() bool { return scheduler.QueuedChecks() == workers })
	if n := scheduler.Queued(); n != 0 {
		t.Errorf("%d checks count as requests that wait", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	next := make(chan *seat, 1)
	go func() {
		s, err := takeSlot(ctx, p)
		if err != nil {
			t.Errorf("the only place of the queue is taken: %v", err)
		}
		next <- s
	}()
	until(t, "a request waits", func() bool { return scheduler.Queued() == 1 })
	if _, err := takeSlot(ctx, p); !fault.Is(err, fault.Exhausted) {
		t.Errorf("one too many: %v", err)
	}
	b[0].red.Store(true)
	var first *seat
	for i, s := range seats {
		if s.name == "w0" {
			first = s
			seats = append(seats[:i:i], seats[i+1:]...)
		}
	}
	first.done(balance.OK)
	until(t, "w0 is not ready", isState(p, "-not ready +up +up +up"))
	seats[0].done(balance.OK)
	s := <-next
	if s.name == "w0" {
		t.Error("w0 was given the request before the check")
	}
	s.done(balance.OK)
	for _, s := range seats[1:] {
		s.done(balance.OK)
	}
}

// Checks leave the connections alone that are kept for requests, where a worker may have others.
func TestChecksKeepConnections(t *testing.T) {
	t.Parallel()
	var checks, kept, lost atomic.Int32
	var gate sync.WaitGroup
	gate.Add(2)
	w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
		for asked := false; ; {
			switch r := request(in); {
			case r == "" && asked:
				lost.Add(1)
				return
			case r == "":
				return
			case strings.HasPrefix(r, "GET /ready"):
				checks.Add(1)
			default:
				asked = true
				kept.Add(1)
				gate.Done()
				gate.Wait() // both are there at the same time
			}
			_, _ = io.WriteString(c, ok("x"))
		}
	})
	f := newFront(t, Options{Workers: []WorkerOptions{{Name: "w0", Address: w.address, Slots: 4}}, KeepIdle: time.Hour,
		Health: Health{Path: "/ready", Interval: 4 * time.Millisecond, Timeout: patience}})
	until(t, "it is up", isState(f.Proxy, "+up"))
	var clients sync.WaitGroup
	for range 2 {
		clients.Go(func() {
			if status, _, _, err := f.get("/"); err != nil || status != 200 {
				t.Error(status, err)
			}
		})
	}
	clients.Wait()
	before := checks.Load()
	until(t, "it was checked some times", func() bool { return checks.Load() > before+5 })
	if lost.Load() != 0 || kept.Load() != 2 {
		t.Errorf("%d of %d connections were closed", lost.Load(), kept.Load())
	}
	wait(t, "the worker has no more connections than slots", func() bool { return w.open.Load() <= 4 })
}

// A worker that accepts requests and does not respond gets one of them. After it has failed, the check keeps its slot
// until the health of the worker is known.
func TestSilentWorkerHasOneRequest(t *testing.T) {
	t.Parallel()
	var had atomic.Int32
	end := make(chan bool)
	silent := serveRaw(t, func(n int, c net.Conn, in *bufio.Reader) {
		for {
			switch r := request(in); {
			case r == "":
				return
			case !strings.HasPrefix(r, "GET /ready"):
				had.Add(1)
				<-end // as after a timeout
				return
			case had.Load() > 0:
				return
			}
			_, _ = io.WriteString(c, ok("ready"))
		}
	})
	good := serveRaw(t, func(n int, c net.Conn, in *bufio.Reader) {
		for request(in) != "" {
			time.Sleep(time.Millisecond)
			_, _ = io.WriteString(c, ok("good"))
		}
	})
	f := newFront(t, Options{
		Workers: []WorkerOptions{{Name: "silent", Address: silent.address, Slots: 1},
			{Name: "good", Address: good.address, Slots: 1}},
		HeaderTimeout: time.Hour, Health: Health{Path: "/ready", Interval: 20 * time.Millisecond, Timeout: patience,
			Failures: 3, Passes: 1},
	})
	until(t, "both are up", isState(f.Proxy, "+up +up"))
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	var failed, answered atomic.Int32
	for range 6 { // more than there are slots, all the time
		clients.Go(func() {
			for ctx.Err() == nil {
				switch status, _, _, err := f.do(http.MethodPost, "/", strings.NewReader("x")); {
				case err == nil && status == 200:
					answered.Add(1)
				case err == nil && status == 502:
					failed.Add(1)
				default:
					t.Errorf("%d, %v", status, err)
				}
			}
		})
	}
	until(t, "it has one", func() bool { return had.Load() > 0 })
	n := answered.Load()
	until(t, "others are answered", func() bool { return answered.Load() > n+20 })
	until(t, "a check waits", func() bool { return f.table.Load().pools[0].scheduler.QueuedChecks() > 0 })
	close(end)
	until(t, "it is down", isState(f.Proxy, "-down +up"))
	stop()
	clients.Wait()
	if had.Load() != 1 || failed.Load() != 1 {
		t.Errorf("it had %d requests, and %d failed", had.Load(), failed.Load())
	}
}

// A drained worker whose slots are all in use is not checked, and does not count as down.
func TestBusyWorkerIsNotDown(t *testing.T) {
	t.Parallel()
	b, o := backs(t, 2)
	var log logged
	o.Log, o.Health.Timeout, o.Health.Failures = log.logger(), time.Hour, 1
	b[0].hold = make(chan struct{})
	f := newFront(t, o)
	until(t, "both are up", isState(f.Proxy, "+up +up"))
	if _, err := f.Drain("w1", true); err != nil {
		t.Fatal(err)
	}
	held := make(chan int, 1)
	go func() {
		status, _, _, _ := f.get("/hold")
		held <- status
	}()
	until(t, "w0 is busy", func() bool { return f.Workers()[0].InFlight == 1 })
	if _, err := f.Drain("w0", true); err != nil {
		t.Fatal(err)
	}
	f.check(t.Context(), f.table.Load().pools[0].workers[0], time.Millisecond) // it would wait for an hour
	if got := states(f.Proxy); !strings.HasPrefix(got, "-draining ") ||
		strings.Contains(strings.Join(log.all(), ""), "worker=w0") {
		t.Errorf("%s; the log says %q", got, log.all())
	}
	close(b[0].hold)
	if status := <-held; status != 200 {
		t.Error(status)
	}
}
