package app

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

func reverseProxy(address string) *httputil.ReverseProxy {
	u, _ := url.Parse(address)
	return httputil.NewSingleHostReverseProxy(u)
}

// drain reads until the connection ends.
func drain(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

// A worker that is silent, at whichever moment, costs its time limit and no more.
func TestSilentWorkers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer string
		status int // 0: cut
	}{
		"nothing":           {"", 504},
		"half a head":       {"HTTP/1.1 200 OK\r\nContent-Le", 504},
		"103 only":          {"HTTP/1.1 103 Early Hints\r\n\r\n", 504},
		"no body":           {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 504},
		"half a short body": {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", 504},
		"half a long body":  {"HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\nhel", 0},
		"half a chunk":      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", 0},
		"no more chunks":    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
				if request(in) != "" {
					_, _ = io.WriteString(c, test.answer)
					drain(c)
				}
			})
			o := Options{Workers: one(w.address), HeaderTimeout: patience, StallTimeout: time.Second}
			if !strings.Contains(test.answer, " 200 ") || !strings.Contains(test.answer, "\r\n\r\n") {
				o.HeaderTimeout = time.Second
			}
			f := newFront(t, o)
			status, _, _, err := f.get("/")
			if status != test.status && err == nil || test.status != 0 && err != nil {
				t.Errorf("%d, %v", status, err)
			}
			wait(t, "the connection is closed", func() bool { return w.open.Load() == 0 })
			if r := <-f.records; r.Err == nil || r.Tries != 1 || r.Cut != (test.status == 0) {
				t.Errorf("%+v", r)
			}
		})
	}
}

// A worker that takes connections and reads nothing costs its time limit, too, and its slot is free again.
func TestWorkerReadsNothing(t *testing.T) {
	t.Parallel()
	end := make(chan bool)
	w := serveRaw(t, func(n int, c net.Conn, in *bufio.Reader) {
		if n == 1 {
			<-end
		} else if request(in) != "" {
			_, _ = io.WriteString(c, ok("next"))
		}
	})
	f := newFront(t, Options{Workers: one(w.address), HeaderTimeout: time.Hour, StallTimeout: time.Second})
	if status, _, _, err := f.do(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", 20<<20))); err != nil ||
		status != http.StatusGatewayTimeout {
		t.Errorf("%d, %v", status, err)
	}
	wait(t, "nothing is left", func() bool { return f.Workers()[0].InFlight == 0 && f.memory.used.Load() == 0 })
	if status, _, body, err := f.get("/"); err != nil || status != 200 || body != "next" {
		t.Errorf("after it: %d %q, %v", status, body, err)
	}
	close(end)
}

// A request that may be sent again is, to another worker, when the first one dies of it or cannot be reached; no other
// one is.
func TestAnotherWorker(t *testing.T) {
	t.Parallel()
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead.Close()
	var died atomic.Int32
	dies := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
		if request(in) != "" {
			died.Add(1)
			_ = c.(*net.TCPConn).SetLinger(0)
		}
	})
	good := serveRaw(t, echo)
	t.Run("unreachable", func(t *testing.T) {
		t.Parallel()
		f := newFront(t, Options{Workers: []WorkerOptions{{Name: "a", Address: "http://" + dead.Addr().String()},
			{Name: "b", Address: good.address}}})
		for range 4 {
			if status, _, _, err := f.do(http.MethodPost, "/", strings.NewReader("x")); err != nil || status != 200 {
				t.Error(status, err)
			}
		}
	})
	t.Run("dies", func(t *testing.T) {
		t.Parallel()
		f := newFront(t, Options{Workers: []WorkerOptions{{Name: "a", Address: dies.address},
			{Name: "b", Address: good.address}}})
		for died.Load() == 0 {
			if status, _, _, err := f.get("/"); err != nil || status != 200 {
				t.Error(status, err)
			}
		}
	})
	t.Run("all die", func(t *testing.T) {
		t.Parallel()
		var asked atomic.Int32
		var workers []WorkerOptions
		for i := range 5 {
			w := serveRaw(t, func(_ int, _ net.Conn, in *bufio.Reader) {
				if request(in) != "" {
					asked.Add(1)
				}
			})
			workers = append(workers, WorkerOptions{Name: fmt.Sprint("w", i), Address: w.address})
		}
		f := newFront(t, Options{Workers: workers})
		if status, _, _, err := f.get("/"); err != nil || status != 502 || asked.Load() != maxSent {
			t.Errorf("%d, %v, %d workers had it", status, err, asked.Load())
		}
		asked.Store(0)
		if status, _, _, err := f.do(http.MethodPost, "/", strings.NewReader("x")); err != nil || status != 502 ||
			asked.Load() != 1 {
			t.Errorf("%d, %v, %d workers had what may be sent once", status, err, asked.Load())
		}
	})
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		f := newFront(t, Options{Workers: one("http://" + dead.Addr().String())})
		if status, header, body, err := f.get("/"); err != nil || status != 503 || header.Get("Retry-After") == "" ||
			strings.Contains(body, "127.0.0.1") {
			t.Errorf("%d %q, %v", status, body, err)
		}
	})
}

// A worker that resets its connection in the middle of an answer: what has come never looks like all of it, also where
// the connection's end would be its end.
func TestResets(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"half a short body": "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello",
		"half a long body":  "HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\nhello",
		"chunks":            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"to the end":        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello",
		"to the end, old":   "HTTP/1.0 200 OK\r\n\r\nhello",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, proto := range []string{"1.1", "1.0"} {
				read := make(chan bool)
				w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
					if request(in) != "" {
						_, _ = io.WriteString(c, answer)
						if !strings.Contains(answer, ": 500\r") {
							<-read
						}
						_ = c.(*net.TCPConn).SetLinger(0)
					}
				})
				f := newFront(t, Options{Workers: one(w.address), StallTimeout: time.Hour})
				c := f.dial()
				fmt.Fprintf(c, "GET / HTTP/%s\r\nHost: a\r\nConnection: close\r\n\r\n", proto)
				in := bufio.NewReader(c)
				response, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatal(err)
				}
				var first [5]byte
				_, _ = io.ReadFull(response.Body, first[:])
				close(read)
				if _, err := io.ReadAll(response.Body); err == nil && response.StatusCode != http.StatusBadGateway {
					t.Errorf("HTTP/%s: %d and %q look whole", proto, response.StatusCode, first)
				}
				c.Close()
				if r := <-f.records; r.Err == nil || r.Cut != (r.Status == 200) {
					t.Errorf("%+v", r)
				}
				wait(t, "its connection is closed", func() bool { return w.open.Load() == 0 })
			}
		})
	}
}

// A client that goes away takes its request with it.
func TestClientGoesAway(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"before the answer": "",
		"in a short one":    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
		"in a long one":     "HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\nhel",
		"in a stream":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arrived, left := make(chan bool, 1), make(chan bool, 1)
			w := serveRaw(t, func(n int, c net.Conn, in *bufio.Reader) {
				if request(in) == "" {
					return
				}
				if n > 1 {
					_, _ = io.WriteString(c, ok("next"))
					return
				}
				_, _ = io.WriteString(c, answer)
				arrived <- true
				drain(c)
				left <- true
			})
			f := newFront(t, Options{Workers: one(w.address), HeaderTimeout: time.Hour, StallTimeout: time.Hour})
			c := f.dial()
			_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi")
			<-arrived
			c.Close()
			<-left
			if r := <-f.records; r.Err == nil || !r.Cut {
				t.Errorf("%+v", r)
			}
			if status, _, body, err := f.get("/"); err != nil || status != 200 || body != "next" {
				t.Errorf("after it: %d %q, %v", status, body, err)
			}
		})
	}
}

// A worker whose client has disconnected is busy until it has finished the request, and gets no other one.
func TestClientLeavesBusyWorker(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]string{
		"it answers":                "HTTP/1.1 103 Early Hints\r\n\r\n" + ok("for nobody"),
		"in chunks":                 "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nfor\r\n0\r\n\r\n",
		"with a head":               "HTTP/1.1 204 No Content\r\n\r\n",
		"until it closes":           "HTTP/1.1 200 OK\r\n\r\nfor nobody",
		"with events, without end":  "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n",
		"it speaks something else":  "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
		"it answers what is none":   "what?\r\n\r\n",
		"it closes without a word":  "",
		"it is silent for too long": "silent",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arrived, finish := make(chan bool, 1), make(chan bool)
			defer close(finish)
			w := serveRaw(t, func(n int, c net.Conn, in *bufio.Reader) {
				for request(in) != "" {
					if n > 1 {
						_, _ = io.WriteString(c, ok("next"))
						continue
					}
					arrived <- true
					drain(c) // the client has disconnected
					<-finish
					_, _ = io.WriteString(c, end)
					if strings.Contains(end, "events") {
						<-finish
					}
					return
				}
			})
			silent, o := end == "silent", Options{Workers: one(w.address), HeaderTimeout: time.Hour}
			if silent {
				o.HeaderTimeout = time.Second
			}
			f := newFront(t, o)
			c := f.dial()
			_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi")
			<-arrived
			c.Close()
			if s := f.Workers()[0]; s.InFlight != 1 && !silent {
				t.Errorf("the worker is taken for %+v", s)
			}
			next := make(chan int)
			go func() {
				status, _, _, err := f.get("/")
				if err != nil {
					t.Error(err)
				}
				next <- status
			}()
			if !silent {
				wait(t, "the next waits", func() bool { return f.table.Load().pools[0].scheduler.Queued() == 1 })
				if n := w.dials.Load(); n != 1 {
					t.Errorf("%d connections to a busy worker", n)
				}
				finish <- true
			}
			r := <-f.records
			if r.Status == 200 { // the next one may be the first to end
				r = <-f.records
			}
			if r.Status != statusClientLeft || !r.Cut {
				t.Errorf("%+v", r)
			}
			if status := <-next; status != 200 {
				t.Error(status)
			}
			wait(t, "nothing is left", func() bool { return f.Workers()[0].InFlight == 0 })
			if s := f.Workers()[0]; (s.Failed > 0) != (silent || name == "it answers what is none") {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestManyLeave makes requests of many clients wait, and cancels them. Their memory is released.
func TestManyLeave(t *testing.T) {
	t.Parallel()
	size := crowdSize()
	arrived, finish := make(chan bool), make(chan bool)
	w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
		for request(in) != "" {
			arrived <- true
			<-finish
			if _, err := io.WriteString(c, ok("done")); err != nil {
				return
			}
		}
	})
	o := Options{Workers: one(w.address), HeaderTimeout: time.Hour}
	o.Routing.Queue.Queue = 20_000
	f := newFront(t, o)
	first := make(chan int)
	go func() {
		status, _, _, _ := f.get("/")
		first <- status
	}()
	<-arrived
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for range size {
		waiting.Go(func() {
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader(strings.Repeat("x", 10_000)))
			if record := f.Serve(r.Context(), httptest.NewRecorder(), r,
				clients.Source{}); record.Status != statusClientLeft ||
				record.Tries != 0 {
				t.Errorf("record = %+v, want status %d and no tries", record, statusClientLeft)
			}
		})
	}
	wait(t, "they wait", func() bool { return f.memory.used.Load() >= int64(size)*(10_000-firstBody) })
	cancel()
	waiting.Wait()
	if m := f.memory.used.Load(); m != 0 {
		t.Errorf("bytes of memory = %d, want 0", m)
	}
	finish <- true
	if status := <-first; status != 200 {
		t.Errorf("status of the first request = %d, want 200", status)
	}
	go func() { <-arrived; finish <- true }()
	if status, _, _, err := f.get("/"); err != nil || status != 200 {
		t.Errorf("next request = %d, %v, want 200", status, err)
	}
}

// A worker may answer a long body before it has read it.
func TestEarlyAnswer(t *testing.T) {
	t.Parallel()
	answered := make(chan bool)
	for name, after := range map[string]func(in *bufio.Reader){
		"and close":       func(*bufio.Reader) {},
		"and read on":     func(in *bufio.Reader) { _, _ = io.CopyN(io.Discard, in, 20<<20) },
		"and do not read": func(*bufio.Reader) { <-answered },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
				for {
					line, err := in.ReadString('\n')
					if err != nil {
						return
					}
					if line == "\r\n" {
						break
					}
				}
				_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno")
				after(in)
			})
			f := newFront(t, Options{Workers: one(w.address), HeaderTimeout: time.Hour, StallTimeout: time.Hour})
			for done, late := 0, 0; done < 3; done++ {
				status, _, body, err := f.do(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", 20<<20)))
				// The response of a worker that closes with unread bytes may be lost, because TCP resets the connection. On a
				// busy machine the client may still send when the server closes the connection, half a second later.
				if isCut := errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET); isCut && late < 10 {
					late++
					done--
				} else if err != nil || (status != 413 || body != "no") && (name != "and close" || status != 502) {
					t.Errorf("%d %q, %v", status, body, err)
				}
				if name == "and do not read" {
					answered <- true
				}
			}
		})
	}
}

// panics is a client whose response writer panics, like a bug in this package.
type panics struct{ *httptest.ResponseRecorder }

func (panics) Write([]byte) (int, error) { panic("a bug") }

// A panic ends its own request, in any goroutine, and leaves no memory, file or slot in use.
func TestPanics(t *testing.T) {
	t.Parallel()
	w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
		if request(in) != "" {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\nhel")
			drain(c)
		}
	})
	f := newFront(t, Options{Workers: one(w.address), HeaderTimeout: time.Hour, StallTimeout: time.Hour})
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	if record := f.Serve(t.Context(), panics{httptest.NewRecorder()}, r, clients.Source{}); !record.Cut ||
		!fault.Is(record.Err, fault.Internal) {
		t.Errorf("in what sends the answer: %+v", record)
	}
	wait(t, "the connection is closed", func() bool { return w.open.Load() == 0 })
	if n := f.memory.used.Load(); n != 0 {
		t.Errorf("%d bytes are counted", n)
	}
}

// A request that kills its workers kills two of them, not all, also over kept connections.
func TestDeadlyRequest(t *testing.T) {
	t.Parallel()
	const n = 6
	var killed atomic.Int32
	var workers []WorkerOptions
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		w := serveOn(t, l, "http://"+l.Addr().String(), func(_ int, c net.Conn, in *bufio.Reader) {
			for r := request(in); r != ""; r = request(in) {
				if strings.HasPrefix(r, "GET /kill") {
					killed.Add(1)
					l.Close()
					return
				}
				_, _ = io.WriteString(c, ok("x"))
			}
		})
		workers = append(workers, WorkerOptions{Name: fmt.Sprint("w", i), Address: w.address, Slots: 1})
	}
	f := newFront(t, Options{Workers: workers, KeepIdle: time.Hour})
	for range n {
		if status, _, _, err := f.get("/"); status != http.StatusOK {
			t.Fatal(status, err)
		}
	}
	if status, _, _, err := f.get("/kill"); status != http.StatusBadGateway && status != http.StatusServiceUnavailable {
		t.Error(status, err)
	}
	if k := killed.Load(); k != maxSent {
		t.Errorf("it ended %d of %d workers", k, n)
	}
}

// A request that another worker answers has succeeded.
func TestSecondWorkerSucceeds(t *testing.T) {
	t.Parallel()
	good := serveRaw(t, echo)
	for range 4 { // whichever is asked first
		f := newFront(t, Options{Workers: []WorkerOptions{{Name: "gone", Address: "unix:" + t.TempDir() + "/none", Slots: 1},
			{Name: "good", Address: good.address, Slots: 1}}})
		if status, _, _, err := f.get("/"); status != http.StatusOK {
			t.Error(status, err)
		}
		if r := <-f.records; r.Worker != "good" || r.Err != nil {
			t.Errorf("%+v", r)
		}
	}
}
