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

// A request that finds all workers busy with what they had under another name waits, as long as one may wait.
func TestReloadRenamesBusy(t *testing.T) {
	t.Parallel()
	hold := make(chan bool)
	w := serveRaw(t, holds(hold))
	o := Options{Workers: one(w.address), ConnectTimeout: 500 * time.Millisecond}
	o.Routing.Queue = balance.Limits{Queue: 1000, Wait: 30 * time.Second}
	f := newFront(t, o)
	done := make(chan int)
	go func() { s, _, _, _ := f.get("/hold"); done <- s }()
	wait(t, "runs", func() bool { return w.open.Load() == 1 })
	reload(t, f, "app", WorkerOptions{Name: "w0b", Address: w.address, Slots: 1})
	time.AfterFunc(1500*time.Millisecond, func() { close(hold) }) // longer than for a connection
	if status, _, body, err := f.get("/"); status != 200 {
		t.Errorf("after a reload: %d %q %v", status, body, err)
	}
	if s := <-done; s != 200 {
		t.Error(s)
	}
}

// A request does not wait at a worker that is busy under another name while another one is idle.
func TestReloadUsesFree(t *testing.T) {
	t.Parallel()
	hold := make(chan bool)
	defer close(hold)
	a, b := serveRaw(t, holds(hold)), serveRaw(t, holds(hold))
	f := newFront(t, Options{Workers: []WorkerOptions{{Name: "a", Address: a.address, Slots: 1}},
		ConnectTimeout: 4 * time.Second})
	go func() { _, _, _, _ = f.get("/hold") }()
	wait(t, "runs", func() bool { return a.open.Load() == 1 })
	reload(t, f, "app", WorkerOptions{Name: "a2", Address: a.address, Slots: 1},
		WorkerOptions{Name: "b", Address: b.address, Slots: 1})
	slow := 0
	for range 6 {
		began := time.Now()
		if status, _, _, err := f.get("/"); status != 200 {
			t.Error(status, err)
		}
		if time.Since(began) > 2*time.Second {
			slow++
		}
	}
	if slow > 0 {
		t.Errorf("%d of 6 requests waited at a busy worker while b was idle", slow)
	}
}

// A request goes to the worker that has a slot free, whatever name the other one had.
func TestReloadUsesFreeSlot(t *testing.T) {
	t.Parallel()
	hold := make(chan bool)
	defer close(hold)
	var holding atomic.Int32
	serve := func(_ int, c net.Conn, in *bufio.Reader) {
		for r := request(in); r != ""; r = request(in) {
			if strings.HasPrefix(r, "GET /hold") {
				holding.Add(1)
				<-hold
			}
			_, _ = io.WriteString(c, ok("x"))
		}
	}
	a, b := serveRaw(t, serve), serveRaw(t, serve)
	f := newFront(t, Options{Workers: []WorkerOptions{{Name: "a", Address: a.address, Slots: 2}},
		ConnectTimeout: 4 * time.Second, Health: Health{Path: "/h", Interval: 50 * time.Millisecond}})
	up := func() bool {
		for _, w := range f.Workers() {
			if w.State != "up" {
				return false
			}
		}
		return true
	}
	wait(t, "up", up)
	held := func(n int32) {
		go func() { _, _, _, _ = f.get("/hold") }()
		wait(t, "runs", func() bool { return holding.Load() == n })
	}
	held(1)
	reload(t, f, "app", WorkerOptions{Name: "a2", Address: a.address, Slots: 2},
		WorkerOptions{Name: "b", Address: b.address, Slots: 2})
	wait(t, "up", up)
	held(2)
	held(3) // one on each, of three places that there are one is left, at b
	slow := 0
	for range 6 {
		began := time.Now()
		if status, _, _, err := f.get("/"); status != 200 {
			t.Error(status, err)
		}
		if time.Since(began) > 2*time.Second {
			slow++
		}
	}
	t.Log(f.Workers())
	if slow > 0 {
		t.Errorf("%d of 6 requests waited at a full worker while b had a free slot", slow)
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
	f := newFront(t, Options{Workers: one(w.address), UpgradeIdle: 20 * time.Second})
	c := f.dial()
	defer c.Close()
	_, _ = io.WriteString(c, wants)
	<-full
	began := time.Now()
	f.Proxy.Close()
	if d := time.Since(began); d > time.Second {
		t.Errorf("Close took %v", d)
	}
}

// A drained worker that has no requests is drained, also while a check of it gets no answer.
func TestDrainedWhileChecked(t *testing.T) {
	t.Parallel()
	var hang atomic.Bool
	end := make(chan bool)
	defer close(end)
	w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
		for r := request(in); r != ""; r = request(in) {
			if hang.Load() {
				<-end
			}
			_, _ = io.WriteString(c, ok("x"))
		}
	})
	f := newFront(t, Options{Workers: one(w.address), Health: Health{Path: "/h", Interval: 100 * time.Millisecond,
		Timeout: 500 * time.Millisecond, Failures: 1 << 20}})
	wait(t, "up", func() bool { return f.Workers()[0].State == "up" })
	hang.Store(true)
	if err := f.Drain("w0", true); err != nil {
		t.Fatal(err)
	}
	no := 0
	const n = 300
	for range n {
		time.Sleep(10 * time.Millisecond)
		if f.Workers()[0].State != "drained" {
			no++
		}
	}
	if no > n/20 {
		t.Errorf("in %d of %d looks a drained worker without requests is said to have some", no, n)
	}
}

// Close ends the requests at a worker that was left out.
func TestCloseLeftOut(t *testing.T) {
	t.Parallel()
	hold := make(chan bool)
	a := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
		for r := request(in); r != ""; r = request(in) {
			select {
			case <-hold:
			case <-time.After(5 * time.Second):
			}
			_, _ = io.WriteString(c, ok("x"))
		}
	})
	defer close(hold)
	b := serveRaw(t, echo)
	f := newFront(t, Options{Workers: one(a.address)})
	done := make(chan int)
	go func() { s, _, _, _ := f.get("/"); done <- s }()
	wait(t, "runs", func() bool { return a.open.Load() == 1 })
	reload(t, f, "app", WorkerOptions{Name: "b", Address: b.address, Slots: 1})
	f.Proxy.Close()
	select {
	case s := <-done:
		t.Log(s)
	case <-time.After(2 * time.Second):
		t.Error("it runs on after Close")
		<-done
	}
}

// The blackout counts from when the last request ends, also one of before a reload.
func TestReloadBlackout(t *testing.T) {
	t.Parallel()
	hold := make(chan bool)
	w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
		for r := request(in); r != ""; r = request(in) {
			<-hold
			_, _ = io.WriteString(c, ok("x"))
		}
	})
	f := newFront(t, Options{Workers: one(w.address), Blackout: 500 * time.Millisecond})
	done := make(chan int)
	go func() { s, _, _, _ := f.get("/long"); done <- s }()
	wait(t, "runs", func() bool { return w.open.Load() == 1 })
	if err := f.Drain("w0", true); err != nil {
		t.Fatal(err)
	}
	reload(t, f, "app", WorkerOptions{Name: "w0", Address: w.address, Slots: 2})
	time.Sleep(600 * time.Millisecond)
	if s := f.Workers()[0].State; s != "draining" {
		t.Error(s)
	}
	hold <- true
	<-done
	began := time.Now()
	wait(t, "drained", func() bool { return f.Workers()[0].State == "drained" })
	if d := time.Since(began); d < 400*time.Millisecond {
		t.Errorf("a blackout of %v", d)
	}
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
	if err := f.Drain("a2", true); err != nil {
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
