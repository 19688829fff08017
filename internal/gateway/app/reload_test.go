package app

import (
	"bufio"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// reload gives the proxy one pool.
func reload(t *testing.T, f *front, pool string, workers ...WorkerOptions) {
	t.Helper()
	routing := f.table.Load().Routing
	routing.Pools = []PoolOptions{{Name: pool, Share: 1, Workers: workers}}
	if err := f.Set(routing); err != nil {
		t.Fatal(err)
	}
}

// holds is a worker that answers /hold when it is let go.
func holds(hold chan bool) func(int, net.Conn, *bufio.Reader) {
	return func(_ int, c net.Conn, in *bufio.Reader) {
		for r := request(in); r != ""; r = request(in) {
			if strings.HasPrefix(r, "GET /hold") {
				<-hold
			}
			_, _ = io.WriteString(c, ok("x"))
		}
	}
}

// A request that finds all workers busy with what they had under another name waits.
func TestReloadRenamesBusy(t *testing.T) {
	t.Parallel()
	hold := make(chan bool)
	w := serveRaw(t, holds(hold))
	f := newFront(t, Options{Workers: one(w.address)})
	done := make(chan int, 2)
	go func() { s, _, _, _ := f.get("/hold"); done <- s }()
	wait(t, "runs", func() bool { return w.open.Load() == 1 })
	reload(t, f, "app", WorkerOptions{Name: "w0b", Address: w.address, Slots: 1})
	go func() { s, _, _, _ := f.get("/"); done <- s }()
	wait(t, "the next waits", func() bool { return f.table.Load().pools[0].scheduler.Queued() == 1 })
	close(hold)
	for range 2 {
		if s := <-done; s != 200 {
			t.Errorf("status = %d, want 200", s)
		}
	}
}

// A request does not go to a worker that is busy under another name while another one is idle.
func TestReloadUsesFree(t *testing.T) {
	t.Parallel()
	hold := make(chan bool)
	defer close(hold)
	a, b := serveRaw(t, holds(hold)), serveRaw(t, holds(hold))
	f := newFront(t, Options{Workers: []WorkerOptions{{Name: "a", Address: a.address, Slots: 1}}})
	go func() { _, _, _, _ = f.get("/hold") }()
	wait(t, "runs", func() bool { return a.open.Load() == 1 })
	reload(t, f, "app", WorkerOptions{Name: "a2", Address: a.address, Slots: 1},
		WorkerOptions{Name: "b", Address: b.address, Slots: 1})
	for range 6 {
		if status, _, _, err := f.get("/"); status != 200 {
			t.Error(status, err)
		}
		if r := <-f.records; r.Worker != "b" {
			t.Errorf("worker = %s, want b", r.Worker)
		}
	}
}

// Close ends upgraded connections whose clients read nothing.
func TestCloseTunnel(t *testing.T) {
	t.Parallel()
	full := make(chan bool)
	w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
		request(in)
		_, _ = io.WriteString(c, switched)
		b := make([]byte, 1<<16)
		for {
			_ = c.SetWriteDeadline(time.Now().Add(time.Second))
			if _, err := c.Write(b); err != nil {
				close(full)
				_ = c.SetDeadline(time.Time{})
				_, _ = c.Read(b)
				return
			}
		}
	})
	f := newFront(t, Options{Workers: one(w.address), UpgradeIdle: time.Hour})
	c := f.dial()
	defer c.Close()
	_, _ = io.WriteString(c, wants)
	<-full
	f.Proxy.Close()
	_, _ = io.Copy(io.Discard, c) // to the end
}

// A drained worker that has no requests is drained, also while a check of it gets no answer.
func TestDrainedWhileChecked(t *testing.T) {
	t.Parallel()
	var hang atomic.Bool
	hangs, end := make(chan bool), make(chan bool)
	w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
		for r := request(in); r != ""; r = request(in) {
			if hang.Load() {
				select {
				case hangs <- true:
				case <-end:
				}
				<-end
			}
			_, _ = io.WriteString(c, ok("x"))
		}
	})
	defer close(end)
	f := newFront(t, Options{Workers: one(w.address),
		Health: Health{Path: "/h", Interval: 20 * time.Millisecond, Timeout: patience}})
	wait(t, "up", func() bool { return f.Workers()[0].State == "up" })
	if _, err := f.Drain("w0", true); err != nil {
		t.Fatal(err)
	}
	hang.Store(true)
	<-hangs
	if s := f.Workers()[0]; s.State != "drained" {
		t.Errorf("worker = %+v, want drained", s)
	}
}

// Close ends the requests at a worker that was left out.
func TestCloseLeftOut(t *testing.T) {
	t.Parallel()
	hold := make(chan bool)
	a, b := serveRaw(t, holds(hold)), serveRaw(t, echo)
	defer close(hold)
	f := newFront(t, Options{Workers: one(a.address)})
	done := make(chan bool)
	go func() { _, _, _, _ = f.get("/hold"); close(done) }()
	wait(t, "runs", func() bool { return a.open.Load() == 1 })
	reload(t, f, "app", WorkerOptions{Name: "b", Address: b.address, Slots: 1})
	f.Proxy.Close()
	<-done
}

// The blackout counts from when the last request ends, also one of before a reload.
func TestReloadBlackout(t *testing.T) {
	t.Parallel()
	const blackout = time.Hour
	hold := make(chan bool)
	w := serveRaw(t, holds(hold))
	f := newFront(t, Options{Workers: one(w.address), Blackout: blackout})
	var later atomic.Int64
	f.now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	done := make(chan int)
	go func() { s, _, _, _ := f.get("/hold"); done <- s }()
	wait(t, "runs", func() bool { return w.open.Load() == 1 })
	if _, err := f.Drain("w0", true); err != nil {
		t.Fatal(err)
	}
	reload(t, f, "app", WorkerOptions{Name: "w0", Address: w.address, Slots: 2})
	want := func(state string) {
		t.Helper()
		if s := f.Workers()[0].State; s != state {
			t.Errorf("state = %s, want %s", s, state)
		}
	}
	later.Add(int64(2 * blackout))
	want("draining")
	hold <- true
	<-done
	wait(t, "the request has ended", func() bool { return f.Workers()[0].InFlight == 0 })
	want("draining")
	later.Add(int64(2 * blackout))
	want("drained")
}

// The worker of a name is another process now: what the one before still has takes none of its slots.
func TestReloadOtherAddress(t *testing.T) {
	t.Parallel()
	hold := make(chan bool)
	defer close(hold)
	a, b := serveRaw(t, holds(hold)), serveRaw(t, holds(hold))
	o := Options{Workers: one(a.address)}
	o.Routing.Queue = balance.Limits{Queue: 1000, Wait: time.Second}
	f := newFront(t, o)
	go func() { _, _, _, _ = f.get("/hold") }()
	wait(t, "runs", func() bool { return a.open.Load() == 1 })
	reload(t, f, "app", WorkerOptions{Name: "w0", Address: b.address, Slots: 1})
	if status, _, body, err := f.get("/"); status != 200 {
		t.Errorf("%d %q %v; %d connections to the new one", status, body, err, b.open.Load())
	}
}

// Requests that a worker got under another name count. A request that finds no connection goes to another worker, and a
// drained worker is not reported as drained before they end.
func TestReloadOfBusyWorkers(t *testing.T) {
	t.Parallel()
	finish := make(chan bool)
	defer close(finish)
	streams := func(_ int, c net.Conn, in *bufio.Reader) {
		if request(in) != "" {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
			<-finish
		}
	}
	a, b := serveRaw(t, streams), serveRaw(t, streams)
	f := newFront(t, Options{Workers: []WorkerOptions{{Name: "a", Address: a.address, Slots: 2}}})
	stream := func() {
		t.Helper()
		c := f.dial()
		t.Cleanup(func() { c.Close() })
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		if line, err := bufio.NewReader(c).ReadString('\n'); !strings.Contains(line, " 200 ") {
			t.Fatalf("%q, %v", line, err)
		}
	}
	stream()
	stream()
	routing := f.table.Load().Routing
	routing.Pools = []PoolOptions{{Name: "app", Share: 1,
		Workers: []WorkerOptions{{Name: "a2", Address: a.address, Slots: 2}, {Name: "b", Address: b.address, Slots: 2}}}}
	if err := f.Set(routing); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		stream()
	}
	if a.open.Load() != 2 || b.open.Load() != 2 {
		t.Errorf("%d and %d connections", a.open.Load(), b.open.Load())
	}
	if _, err := f.Drain("a2", true); err != nil {
		t.Fatal(err)
	}
	routing.Pools = []PoolOptions{{Name: "app", Share: 1,
		Workers: []WorkerOptions{{Name: "a3", Address: a.address, Slots: 2}}}}
	if err := f.Set(routing); err != nil {
		t.Fatal(err)
	}
	if s := f.Workers()[0]; s.State != "draining" {
		t.Errorf("%+v", s)
	}
	for range 4 {
		finish <- true
	}
	wait(t, "it is through", func() bool { return f.Workers()[0].State == "drained" })
}

// A worker that is left out keeps no idle connection, though a request of when it had another name still runs at it.
func TestReloadLeavesNoIdleConnection(t *testing.T) {
	t.Parallel()
	hold := make(chan bool)
	finish := sync.OnceFunc(func() { close(hold) })
	defer finish()
	a := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
		for r := request(in); r != ""; r = request(in) {
			if strings.HasPrefix(r, "GET /hold") {
				<-hold
			}
			_, _ = io.WriteString(c, ok("x"))
		}
	})
	b := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {})
	f := newFront(t, Options{Workers: []WorkerOptions{{Name: "a", Address: a.address, Slots: 2}}, KeepIdle: time.Hour})
	held := make(chan int)
	go func() {
		status, _, _, err := f.get("/hold")
		if err != nil {
			t.Error(err)
		}
		held <- status
	}()
	wait(t, "it runs", func() bool { return a.open.Load() == 1 })
	reload(t, f, "app", WorkerOptions{Name: "a2", Address: a.address, Slots: 2})
	if status, _, _, err := f.get("/"); err != nil || status != 200 || a.open.Load() != 2 {
		t.Fatalf("%d, %v; %d connections", status, err, a.open.Load())
	}
	reload(t, f, "app", WorkerOptions{Name: "b", Address: b.address, Slots: 2})
	wait(t, "the idle one is closed", func() bool { return a.open.Load() == 1 })
	finish()
	if status := <-held; status != 200 {
		t.Error(status)
	}
	wait(t, "and the other one", func() bool { return a.open.Load() == 0 })
}
