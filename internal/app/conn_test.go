package app

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/disk"
)

func TestConnectionsAreUsedAgain(t *testing.T) {
	t.Parallel()
	w := serveRaw(t, echo)
	f := newFront(t, Options{Workers: one(w.address), KeepIdle: time.Hour})
	for range 10 {
		if status, _, _, err := f.get("/"); err != nil || status != 200 {
			t.Fatal(status, err)
		}
	}
	if n := w.dials.Load(); n != 1 {
		t.Errorf("%d connections for requests that follow each other", n)
	}
}

// A worker never has more connections than slots, whatever comes.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, 3} {
		w := serveRaw(t, echo)
		f := newFront(t, Options{Workers: []WorkerOptions{{Name: "w0", Address: w.address, Slots: slots}}, KeepIdle: time.Hour})
		var clients sync.WaitGroup
		for range 20 {
			clients.Go(func() {
				for range 20 {
					if status, _, _, err := f.get("/"); err != nil || status != 200 {
						t.Error(status, err)
					}
				}
			})
		}
		clients.Wait()
		if n := int(w.most.Load()); n > slots {
			t.Errorf("%d connections to a worker of %d slots", n, slots)
		}
	}
}

// Whoever waits for a place has it when it is free, or leaves without it.
func TestConnectionPlaces(t *testing.T) {
	t.Parallel()
	w := serveRaw(t, echo)
	o := Options{}
	o.defaults()
	c, err := newConns(w.address, 1, &o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	first, err := c.get(t.Context(), false, true)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	for range 10 {
		others.Go(func() {
			if _, err := c.get(ctx, false, true); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	waiting := func(n int) func() bool {
		return func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.waiting) == n
		}
	}
	wait(t, "all wait", waiting(10))
	cancel()
	others.Wait()
	for _, back := range []func(*conn){c.put, c.drop, func(cn *conn) { c.release(cn); cn.Close() }} {
		got := make(chan *conn)
		go func() {
			cn, err := c.get(t.Context(), false, true)
			if err != nil {
				t.Error(err)
			}
			got <- cn
		}()
		wait(t, "one waits", waiting(1))
		back(first)
		first = <-got
	}
	c.put(first)
	if c.open != 1 || len(c.idle) != 1 || len(c.all) != 1 {
		t.Errorf("%d open, %d idle, %d known", c.open, len(c.idle), len(c.all))
	}
}

func TestIdleConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	w := serveRaw(t, echo)
	f := newFront(t, Options{Workers: one(w.address), KeepIdle: time.Millisecond})
	for range 3 {
		if status, _, _, err := f.get("/"); err != nil || status != 200 {
			t.Fatal(status, err)
		}
		wait(t, "the connection is closed", func() bool { return w.open.Load() == 0 })
	}
}

// A worker that closes its connections loses no request, whether it says so or not.
func TestWorkerCloses(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"said":     "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: Close\r\n\r\nok",
		"HTTP/1.0": "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"not said": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
				if request(in) != "" {
					_, _ = io.WriteString(c, answer)
				}
			})
			f := newFront(t, Options{Workers: one(w.address), KeepIdle: time.Hour})
			for range 5 {
				if status, _, body, err := f.do(http.MethodPost, "/", strings.NewReader("x")); err != nil || status != 200 || body != "ok" {
					t.Error(status, body, err)
				}
				wait(t, "the worker has closed it", func() bool { return w.open.Load() == 0 })
			}
			if n := w.dials.Load(); n != 5 {
				t.Errorf("%d connections", n)
			}
		})
	}
}

// A worker that closes a connection when the next request has come already: what may be sent twice is.
func TestWorkerClosesLate(t *testing.T) {
	t.Parallel()
	w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
		for n := 1; ; n++ {
			if request(in) == "" || n == 2 {
				return
			}
			_, _ = io.WriteString(c, ok("ok"))
		}
	})
	f := newFront(t, Options{Workers: one(w.address), KeepIdle: time.Hour})
	for range 3 {
		if status, _, _, err := f.get("/"); err != nil || status != 200 {
			t.Error(status, err)
		}
	}
	if n := w.dials.Load(); n != 3 {
		t.Errorf("%d connections", n)
	}
	if status, _, _, err := f.do(http.MethodPost, "/", strings.NewReader("x")); err != nil || status != 502 {
		t.Errorf("what may not be sent twice: %d, %v", status, err)
	}
	if r := <-f.records; r.Tries != 1 {
		t.Errorf("%+v", r)
	}
}

// After a worker was replaced behind its Unix socket, requests go to the new one, though the old one still has connections open.
func TestSocketReplaced(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "app") // a short name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "w.sock")
	listen := func(answer string) *rawWorker {
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		return serveOn(t, l, "unix:"+path, say(ok(answer)))
	}
	old := listen("old")
	f := newFront(t, Options{Workers: one(old.address), KeepIdle: time.Hour})
	want := func(body string) {
		t.Helper()
		if status, _, got, err := f.get("/"); err != nil || status != 200 || got != body {
			t.Errorf("%d %q, %v", status, got, err)
		}
	}
	want("old")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	wait(t, "the socket is missed", func() bool {
		status, header, _, err := f.get("/")
		if err != nil || status != 200 && (status != 503 || header.Get("Retry-After") == "") {
			t.Fatalf("without a socket: %d, %v", status, err)
		}
		return status == 503
	})
	listen("new")
	wait(t, "the worker is asked again", func() bool { status, _, _, _ := f.get("/"); return status == 200 })
	want("new")
	wait(t, "the old connections are closed", func() bool { return old.open.Load() == 0 })
}

// A disk that hangs while it is asked which socket is there keeps the request waiting that asks, and no other.
func TestLookThatHangs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "w.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := newConns("unix:"+path, 2, &Options{ConnectTime: patience, KeepIdle: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	get := func() *conn {
		cn, err := c.get(t.Context(), false, true)
		if err != nil {
			t.Error(err)
		}
		return cn
	}
	kept := get()
	c.put(kept)
	c.seen.Store(&look{kept.socket, time.Now().Add(-time.Hour)})
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	c.lookup = func(path string) (disk.ID, error) {
		asked <- struct{}{}
		<-answer
		return disk.Stat(path)
	}
	var looks, other sync.WaitGroup
	looks.Go(func() { c.put(get()) })
	<-asked
	other.Go(func() {
		if cn := get(); cn != kept {
			t.Error("another connection than the one that is kept")
		} else {
			c.put(cn)
		}
	})
	done := make(chan struct{})
	go func() { other.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Error("the other request waits as well")
	}
	close(answer)
	looks.Wait()
	<-done
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	o := Options{}
	for _, address := range []string{"", "unix:", "https://a", "http://", "http://a/b", "http://u@a", "http://a?b", "http://a#b", "a:80", "ftp://a", "http://a:0", "http://a:65536"} {
		if _, err := newConns(address, 1, &o); err == nil {
			t.Errorf("%q is taken", address)
		}
	}
	for address, want := range map[string]string{
		"unix:/a": "unix:/a", "http://a": "http://a", "http://A:80/": "http://a", "http://a:1/": "http://a:1", "http://[::1]:1": "http://[::1]:1",
		"http://[0:0:0:0:0:0:0:1]:080": "http://[::1]", "http://[fe80::1%25Eth0]:3000": "http://[fe80::1%25Eth0]:3000", "http://a:03001": "http://a:3001", "http://[::ffff:127.0.0.1]:3001": "http://127.0.0.1:3001",
		"unix:@app//w0": "unix:@app//w0", "unix:/a/../b.sock": "unix:/a/../b.sock", "unix:/a//./b": "unix:/a/b",
	} {
		if c, err := newConns(address, 1, &o); err != nil || c.String() != want {
			t.Errorf("%s is %v, %v", address, c, err)
		} else if again, err := newConns(want, 1, &o); err != nil || again.String() != want {
			t.Errorf("%s is %v, %v", want, again, err)
		}
	}
}

// BenchmarkRelay measures a trivial request, from a client over net/http's server to a worker that answers at once. Beside it
// stands httputil.ReverseProxy.
func BenchmarkRelay(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var running sync.WaitGroup
	defer running.Wait() // the proxies are closed before
	defer l.Close()
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer c.Close()
				buf := make([]byte, 8<<10)
				for {
					if _, err := c.Read(buf); err != nil { // a request of this benchmark comes at once
						return
					}
					if _, err := io.WriteString(c, ok("hello")); err != nil {
						return
					}
				}
			})
		}
	})
	p, err := New(Options{Workers: []WorkerOptions{{Name: "w0", Address: "http://" + l.Addr().String(), Slots: 8}}})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	plain := reverseProxy("http://" + l.Addr().String())
	plain.Transport = new(http.Transport)
	defer plain.Transport.(*http.Transport).CloseIdleConnections()
	for name, handler := range map[string]http.Handler{"packhorse": p, "reverseproxy": plain} {
		b.Run(name, func(b *testing.B) {
			front, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			s := &http.Server{Handler: handler}
			running.Go(func() { _ = s.Serve(front) })
			defer s.Close()
			c, err := net.Dial("tcp", front.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			in := bufio.NewReader(c)
			b.ReportAllocs()
			for b.Loop() {
				fmt.Fprint(c, "GET /hello HTTP/1.1\r\nHost: a\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n")
				response, err := http.ReadResponse(in, nil)
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, response.Body); n != 5 || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}
