package app

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/transport/clients"
	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
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
		f := newFront(t, Options{Workers: []WorkerOptions{{Name: "w0", Address: w.address, Slots: slots}},
			KeepIdle: time.Hour})
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
		// The transport closes a connection on a busy machine, and the worker may see its successor first. A connection may
		// also become idle at the very end of a dial.
		wait(t, "the worker has as many connections as slots", func() bool { return int(w.open.Load()) <= slots+1 })
	}
}

// TestDialEndsWithDemand checks that a connection is not opened for a request that got another one.
func TestDialEndsWithDemand(t *testing.T) {
	t.Parallel()
	w := serveRaw(t, echo)
	b := newTransport(address{network: "tcp", target: strings.TrimPrefix(w.address, "http://")}, &Options{})
	d := new(demand)
	ctx := context.WithValue(t.Context(), demandKey{}, d)
	d.begin()
	c, err := b.DialContext(ctx, "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d.end()
	if c, err := b.DialContext(ctx, "", ""); !errors.Is(err, context.Canceled) {
		t.Errorf("dial without demand = %v, %v, want none", c, err)
	}
	wait(t, "the second connection is closed", func() bool { return w.open.Load() == 1 })
	d.begin()
	if again, err := b.DialContext(ctx, "", ""); err != nil {
		t.Errorf("dial after the next demand = %v, want a connection", err)
	} else {
		again.Close()
	}
}

// A worker that dies with several idle connections counts as one that had the request. So another worker gets it.
func TestIdleConnectionsOfDeadWorker(t *testing.T) {
	t.Parallel()
	e := &exchange{p: &Proxy{}}
	for _, step := range []struct {
		isReused bool
		want     int
	}{{true, 1}, {true, 1}, {false, 2}} {
		here, there := net.Pipe()
		c := &conn{Conn: httpguard.NewConn(here)}
		reading := make(chan bool)
		go func() { // as the transport does
			_, _ = c.Read(make([]byte, 1))
			close(reading)
		}()
		e.gotConn(httptrace.GotConnInfo{Conn: c, Reused: step.isReused})
		if e.sent != step.want {
			t.Errorf("sent = %d, want %d", e.sent, step.want)
		}
		there.Close()
		<-reading
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

// A worker that closes its connections, with or without an announcement, loses no request.
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
				if status, _, body, err := f.do(http.MethodPost, "/", strings.NewReader("x")); err != nil || status != 200 ||
					body != "ok" {
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

func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "unix:", "https://a", "http://", "http://a/b", "http://u@a", "http://a?b",
		"http://a#b", "a:80", "ftp://a", "http://a:0", "http://a:65536"} {
		if _, err := parseAddress(address); err == nil {
			t.Errorf("%q is taken", address)
		}
	}
	for address, want := range map[string]string{
		"unix:/a": "unix:/a", "http://a": "http://a", "http://A:80/": "http://a", "http://a:1/": "http://a:1",
		"http://[::1]:1":               "http://[::1]:1",
		"http://[0:0:0:0:0:0:0:1]:080": "http://[::1]", "http://[fe80::1%25Eth0]:3000": "http://[fe80::1%25Eth0]:3000",
		"http://a:03001": "http://a:3001", "http://[::ffff:127.0.0.1]:3001": "http://127.0.0.1:3001",
		"unix:@app//w0": "unix:@app//w0", "unix:/a/../b.sock": "unix:/a/../b.sock", "unix:/a//./b": "unix:/a/b",
	} {
		if c, err := parseAddress(address); err != nil || c.String() != want {
			t.Errorf("%s is %v, %v", address, c, err)
		} else if again, err := parseAddress(want); err != nil || again.String() != want {
			t.Errorf("%s is %v, %v", want, again, err)
		}
	}
}

// BenchmarkRelay measures a trivial request, from a client over net/http's server to a worker that answers at once.
// Beside it stands httputil.ReverseProxy.
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
	proxy := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.Serve(r.Context(), w, r, clients.Proxies(nil).Of(r)).Cut {
			panic(http.ErrAbortHandler)
		}
	})
	for name, handler := range map[string]http.Handler{"packhorse": proxy, "reverseproxy": plain} {
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
