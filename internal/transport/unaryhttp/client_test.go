package unaryhttp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a client and how often it dialled.
type world struct {
	*Client
	t     *testing.T
	dials atomic.Int32
}

func newWorld(t *testing.T, address string) *world {
	w := &world{t: t}
	w.Client = &Client{Limit: time.Minute, Dial: func(ctx context.Context) (net.Conn, error) {
		w.dials.Add(1)
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}}
	t.Cleanup(w.Close)
	return w
}

// serve starts a real HTTP server.
func serve(t *testing.T, h http.HandlerFunc) (*httptest.Server, *world) {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s, newWorld(t, s.Listener.Addr().String())
}

// script answers each connection with what a function does to it.
func script(t *testing.T, answer func(n int, c net.Conn, r *http.Request)) *world {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for n := 1; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { serveConn(c, func(r *http.Request) { answer(n, c, r) }) })
		}
	})
	w := newWorld(t, l.Addr().String())
	t.Cleanup(func() { w.Close(); l.Close(); running.Wait() })
	return w
}

// serveConn calls answer for each request on a connection.
func serveConn(c net.Conn, answer func(r *http.Request)) {
	defer c.Close()
	for in := bufio.NewReader(c); ; {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		answer(r)
	}
}

// call posts a text and gives the answer's.
func (w *world) call(ctx context.Context, text string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://node/x", strings.NewReader(text))
	if err != nil {
		return "", err
	}
	response, err := w.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	return string(b), err
}

func (w *world) want(text string) {
	w.t.Helper()
	if got, err := w.call(context.Background(), text); err != nil || got != text {
		w.t.Fatalf("got %q, %v, want %q", got, err, text)
	}
}

func echo(rw http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	_, _ = rw.Write(b)
}

func TestConnectionsAreUsedAgain(t *testing.T) {
	t.Parallel()
	_, w := serve(t, echo)
	for i := range 10 {
		w.want(fmt.Sprint("text ", i))
	}
	if n := w.dials.Load(); n != 1 {
		t.Errorf("connections for sequential calls = %d, want 1", n)
	}
	if !w.CloseIdle() {
		t.Error("CloseIdle() = false without a running call, want true")
	}
}

// Each of many calls at a time gets its own answer.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	_, w := serve(t, echo)
	var running sync.WaitGroup
	for i := range 100 {
		running.Go(func() {
			for k := range 20 {
				text := strings.Repeat(fmt.Sprint(i, ".", k), 1+i*k)
				if got, err := w.call(context.Background(), text); err != nil || got != text {
					t.Errorf("call %d.%d: error = %v or another answer, want %d bytes", i, k, err, len(text))
				}
			}
		})
	}
	running.Wait()
	if n := len(w.idle); n > maxIdle {
		t.Errorf("idle connections = %d, want at most %d", n, maxIdle)
	}
}

// A server that closed an idle connection is asked again on another one, whether that was seen before or not.
func TestServerClosed(t *testing.T) {
	t.Parallel()
	seen := make(chan struct{}, 1)
	w := script(t, func(n int, c net.Conn, r *http.Request) {
		if n == 1 && r.ContentLength == 6 { // "second": it arrives and is not answered
			c.Close()
			seen <- struct{}{}
			return
		}
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", 2, "ok")
	})
	for _, text := range []string{"first", "second", "third"} {
		if got, err := w.call(context.Background(), text); err != nil || got != "ok" {
			t.Fatalf("%s: answer = %q, error = %v, want ok", text, got, err)
		}
	}
	<-seen
	if n := w.dials.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

// A connection that something between here and the server has forgotten is not waited for: the request is sent on
// another one. A new connection is waited for.
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "")
		w.Silence = 100 * time.Millisecond
		w.Dial = func(context.Context) (net.Conn, error) {
			n := w.dials.Add(1)
			near, far := net.Pipe()
			go serveConn(far, func(r *http.Request) {
				switch {
				case n <= 2 && r.ContentLength == 6: // "second"
					return
				case r.ContentLength == 4: // "slow"
					time.Sleep(300 * time.Millisecond)
				}
				fmt.Fprint(far, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			})
			return near, nil
		}
		var both sync.WaitGroup
		for range 2 { // on a connection each
			both.Go(func() {
				if got, err := w.call(context.Background(), "slow"); err != nil || got != "ok" {
					t.Errorf("on a new connection: answer = %q, error = %v, want ok", got, err)
				}
			})
		}
		both.Wait()
		began := time.Now()
		if got, err := w.call(context.Background(), "second"); err != nil || got != "ok" {
			t.Errorf("on a silent connection: answer = %q, error = %v, want ok", got, err)
		}
		if took := time.Since(began); took != w.Silence {
			t.Errorf("duration = %v, want %v", took, w.Silence)
		}
		if got, err := w.call(context.Background(), "third"); err != nil || got != "ok" {
			t.Errorf("third call: answer = %q, error = %v, want ok", got, err)
		}
		if n := w.dials.Load(); n != 3 {
			t.Errorf("%d connections, want 3", n)
		}
	})
}

// TestBadAnswers has invalid and incomplete answers. They are errors, and their connections are not used again.
func TestBadAnswers(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"nothing":         "",
		"no HTTP":         "220 smtp\r\n\r\n",
		"long header":     "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxHeader) + "\r\n\r\n",
		"cut off":         "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
		"cut chunk":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
		"another use":     "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
		"endless hints":   strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 5000),
		"negative length": "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := script(t, func(_ int, c net.Conn, _ *http.Request) {
				_, _ = io.WriteString(c, answer)
				c.Close()
			})
			if got, err := w.call(context.Background(), "x"); err == nil {
				t.Fatalf("answer = %q, want an error", got)
			}
			if !w.CloseIdle() {
				t.Error("CloseIdle() = false, want true: the connection is closed")
			}
		})
	}
}

// Bytes behind an answer belong to no call.
func TestBytesBehindTheAnswer(t *testing.T) {
	t.Parallel()
	const forged = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
	w := script(t, func(_ int, c net.Conn, _ *http.Request) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"+forged)
	})
	for range 5 {
		if got, err := w.call(context.Background(), "x"); err != nil || got != "ok" {
			t.Fatalf("answer = %q, error = %v, want ok", got, err)
		}
	}
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	arrived, leave := make(chan struct{}, 8), make(chan struct{})
	_, w := serve(t, func(rw http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if string(b) == "wait" {
			arrived <- struct{}{}
			select {
			case <-r.Context().Done(): // the connection is closed
			case <-leave:
			}
			return
		}
		_, _ = rw.Write(b)
	})
	t.Cleanup(func() { close(leave) })
	w.want("first")
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-arrived; cancel() }()
	if _, err := w.call(ctx, "wait"); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want %v", err, context.Canceled)
	}
	w.want("after")
	limited, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := w.call(limited, "wait"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error at the deadline = %v, want %v", err, context.DeadlineExceeded)
	}
	w.Limit = 50 * time.Millisecond
	if _, err := w.call(context.Background(), "wait"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error at the limit = %v, want %v", err, context.DeadlineExceeded)
	}
}

// TestUnreadBody closes bodies before their end, which closes the connection.
func TestUnreadBody(t *testing.T) {
	t.Parallel()
	_, w := serve(t, echo)
	r, _ := http.NewRequest(http.MethodPost, "http://node/x", strings.NewReader("abc"))
	response, err := w.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if !w.CloseIdle() {
		t.Error("CloseIdle() = false, want true: the connection is closed")
	}
	w.want("after")
}

func TestAbortAndClose(t *testing.T) {
	t.Parallel()
	arrived, leave := make(chan struct{}, 2), make(chan struct{})
	_, w := serve(t, func(rw http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 1 {
			arrived <- struct{}{}
			<-leave
		}
	})
	t.Cleanup(func() { close(leave) })
	for range 2 { // connections that were used before
		if _, err := w.call(context.Background(), "first"); err != nil {
			t.Fatal(err)
		}
	}
	failed := make(chan error, 2)
	for range 2 {
		go func() { _, err := w.call(context.Background(), "x"); failed <- err }()
		<-arrived
	}
	w.Abort()
	for range 2 {
		if err := <-failed; err == nil {
			t.Error("error after Abort = nil, want one")
		}
	}
	w.Close()
	if _, err := w.call(context.Background(), "x"); !errors.Is(err, errClosed) {
		t.Errorf("error after Close = %v, want %v", err, errClosed)
	}
}

// TestDialError returns the error of the dial to the caller.
func TestDialError(t *testing.T) {
	t.Parallel()
	mine := errors.New("mine")
	c := &Client{Dial: func(context.Context) (net.Conn, error) { return nil, mine }}
	r, _ := http.NewRequest(http.MethodGet, "http://node/", nil)
	if _, err := c.Do(r); !errors.Is(err, mine) {
		t.Errorf("error = %v, want %v", err, mine)
	}
}
