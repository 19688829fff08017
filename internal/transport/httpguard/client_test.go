package httpguard

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

const (
	answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	empty  = "HTTP/1.1 204 No Content\r\n\r\n"
	chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
	forged = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
)

// server answers each request on a connection with the same bytes.
type server struct {
	answer string
	dials  int
}

func (s *server) dial(context.Context, string, string) (net.Conn, error) {
	s.dials++
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		for in := bufio.NewReader(far); ; {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(far, s.answer)
		}
	}()
	return near, nil
}

// post sends a request, which the transport must not repeat once it is written, and returns the body of the answer.
func ask(t *testing.T, ctx context.Context, through http.RoundTripper) string {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://a/", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	response, err := through.RoundTrip(r)
	if err != nil {
		t.Errorf("RoundTrip() = %v, want an answer", err)
		return ""
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Error(err)
	}
	return string(body)
}

// TestBytesBehindAnAnswer stops the transport when it has offered the connection to other requests and has not yet
// looked for more bytes. Another request gets the connection meanwhile.
func TestBytesBehindAnAnswer(t *testing.T) {
	for name, test := range map[string]struct {
		answer, behind string
		dials          int
	}{
		"length":                {answer, forged, 2},
		"no body":               {empty, forged, 2},
		"chunks":                {chunks, forged, 2},
		"a part of an answer":   {answer, forged[:20], 2},
		"something else":        {empty, "6\r\nforged\r\n0\r\n\r\n", 2},
		"nothing":               {answer, "", 1},
		"nothing after no body": {empty, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := server{answer: test.answer + test.behind}
				transport := NewTransport(&http.Transport{DialContext: s.dial})
				second := make(chan string, 1)
				ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{PutIdleConn: func(error) {
					go func() { second <- ask(t, t.Context(), transport) }()
					synctest.Wait() // until it waits, too
				}})
				first := ask(t, ctx, transport)
				if got := <-second; got != first || strings.Contains(got, "forged") {
					t.Errorf("second answer = %q, want %q", got, first)
				}
				if s.dials != test.dials {
					t.Errorf("%d connections, want %d", s.dials, test.dials)
				}
				transport.CloseIdleConnections()
				synctest.Wait()
			})
		})
	}
}

// lateConn is a connection whose reader notices its end when the connection is being closed, and closes it, too, before
// Close returns.
type lateConn struct {
	*net.UnixConn
	closing, closed chan struct{}
	closes          atomic.Int32
}

func (c *lateConn) Read(p []byte) (int, error) {
	n, err := c.UnixConn.Read(p)
	if err != nil {
		<-c.closing
	}
	return n, err
}

func (c *lateConn) Close() error {
	if c.closes.Add(1) == 1 {
		close(c.closing)
		<-c.closed
		return nil
	}
	close(c.closed)
	return c.UnixConn.Close()
}

// end lets the reader notice the end.
func (c *lateConn) end() {
	if c.closes.Add(1) == 1 {
		close(c.closing)
	}
}

// TestClosedWhileIdle has a server close a connection after its answer. The transport notices that after it has chosen
// the connection for the next request, which is not idempotent, and before it has counted the request.
func TestClosedWhileIdle(t *testing.T) {
	l, err := net.Listen("unix", t.TempDir()+"/s") // its end arrives at once
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ended := make(chan struct{}, 1)
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				_, _ = io.Copy(io.Discard, r.Body)
			}
			_, _ = io.WriteString(c, answer)
			c.Close()
			ended <- struct{}{}
		}
	}()
	dials := 0
	transport := NewTransport(&http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		dials++
		c, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			return nil, err
		}
		late := &lateConn{UnixConn: c.(*net.UnixConn), closing: make(chan struct{}), closed: make(chan struct{})}
		t.Cleanup(late.end)
		return late, nil
	}})
	for range 5 {
		if got := ask(t, t.Context(), transport); got != "ok" {
			t.Fatalf("answer = %q, want ok", got)
		}
		<-ended
	}
	if dials != 5 {
		t.Errorf("%d connections, want 5", dials)
	}
}

// TestUnreadBytes has bytes arrive on an idle connection that the transport has not read yet.
func TestUnreadBytes(t *testing.T) {
	l, err := net.Listen("unix", t.TempDir()+"/s") // bytes arrive at once
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	c := NewConn(near)
	defer c.Close()
	c.setReading(true) // it has just begun
	if !c.Settle() {
		t.Error("Settle() of a connection without bytes = false, want true")
	}
	if _, err := io.WriteString(far, forged); err != nil {
		t.Fatal(err)
	}
	if c.Settle() {
		t.Error("Settle() of a connection with unread bytes = true, want false")
	}
	if _, err := near.Write([]byte("x")); err == nil {
		t.Error("the connection is open, want closed")
	}
}

// TestReuse has requests to real servers use one connection, also below TLS.
func TestReuse(t *testing.T) {
	for _, secure := range []bool{false, true} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.RemoteAddr)
		}))
		start := s.Start
		if secure {
			start = s.StartTLS
		}
		start()
		t.Cleanup(s.Close)
		transport := s.Client().Transport.(*http.Transport)
		transport.DialContext = new(net.Dialer).DialContext
		client := http.Client{Transport: NewTransport(transport)}
		var first string
		for i := range 5 {
			response, err := client.Post(s.URL, "text/plain", strings.NewReader("body"))
			if err != nil {
				t.Fatal(err)
			}
			from, err := io.ReadAll(response.Body)
			response.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				first = string(from)
			} else if string(from) != first {
				t.Errorf("request %d came from %s, want %s", i, from, first)
			}
		}
	}
}
