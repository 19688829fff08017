package httpguard

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// front is a server whose connections are guarded.
type front struct {
	t       *testing.T
	address string
	reads   chan int // results of Reads below the guard; nil: not wanted
	mu      sync.Mutex
	refused []*Refusal
}

func newFront(t *testing.T, handler http.HandlerFunc, change func(*front, *http.Server)) *front {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{t: t, address: l.Addr().String()}
	g := New(Options{Refused: func(_ net.Addr, why *Refusal) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.refused = append(f.refused, why)
	}})
	h := &http.Server{Handler: handler, ConnContext: g.Context, ConnState: g.State}
	if change != nil {
		change(f, h)
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = h.Serve(g.Listen(&countingListener{l, f.reads})) }()
	t.Cleanup(func() {
		h.Close()
		<-served
	})
	return f
}

// countingListener makes connections that report how much was read.
type countingListener struct {
	net.Listener
	reads chan int
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil && l.reads != nil {
		c = &countingConn{c, l.reads}
	}
	return c, err
}

type countingConn struct {
	net.Conn
	reads chan int
}

func (c *countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.reads <- n
	}
	return n, err
}

func (f *front) dial() (*net.TCPConn, *bufio.Reader) {
	f.t.Helper()
	c, err := net.Dial("tcp", f.address)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn), bufio.NewReader(c)
}

// answer reads a response.
func (f *front) answer(r *bufio.Reader, method string) (status int, body string) {
	f.t.Helper()
	response, err := http.ReadResponse(r, &http.Request{Method: method})
	if err != nil {
		f.t.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		f.t.Error(err)
	}
	return response.StatusCode, string(text)
}

// A request that comes during a response is refused after the response. net/http reads only its first byte before, to
// notice that a client disconnects.
func TestNextRequestWaits(t *testing.T) {
	t.Parallel()
	for next, why := range map[string]*Refusal{
		"\x16\x03\x01": badLine, "\nGET / HTTP/1.1\r\n": badLine, "\r\r\n": badEnd, get + "Host: b\r\n\r\n": badHost,
		" ": badLine, "GET http://a/ HTTP/1.1\r\n": badTarget,
	} {
		t.Run(why.Reason, func(t *testing.T) {
			t.Parallel()
			started, release := make(chan struct{}), make(chan struct{})
			f := newFront(t, func(w http.ResponseWriter, r *http.Request) {
				started <- struct{}{}
				<-release
				if err := r.Context().Err(); err != nil {
					t.Errorf("error of the first request's context = %v, want nil", err)
				}
			}, func(f *front, _ *http.Server) { f.reads = make(chan int, 100) })
			c, r := f.dial()
			_, _ = io.WriteString(c, get+"\r\n")
			<-started
			<-f.reads
			_, _ = io.WriteString(c, next)
			if n := <-f.reads; n != 1 {
				t.Errorf("bytes read during the response = %d, want 1", n)
			}
			release <- struct{}{}
			if status, _ := f.answer(r, "GET"); status != http.StatusOK {
				t.Errorf("status of the request before %q = %d, want 200", next, status)
			}
			if status, text := f.answer(r, "GET"); status != why.Status || text != why.Error()+"\n" {
				t.Errorf("response to %q = %d %q, want %d %q", next, status, text, why.Status, why.Error()+"\n")
			}
			c.Close()
		})
	}
}

// The end of a connection during a response is noticed, also if more came together with the request.
func TestHangUpIsNoticed(t *testing.T) {
	t.Parallel()
	for _, more := range []string{"", "G", get + "\r\n"} {
		started, ended := make(chan struct{}, 2), make(chan struct{}, 2)
		f := newFront(t, func(_ http.ResponseWriter, r *http.Request) {
			started <- struct{}{}
			<-r.Context().Done()
			ended <- struct{}{}
		}, nil)
		c, _ := f.dial()
		_, _ = io.WriteString(c, get+"\r\n"+more)
		<-started
		c.Close()
		<-ended
	}
}

// Pipelined requests get responses in their order.
func TestPipelined(t *testing.T) {
	t.Parallel()
	started, release := make(chan struct{}), make(chan struct{})
	f := newFront(t, func(w http.ResponseWriter, r *http.Request) {
		started <- struct{}{}
		<-release
		_, _ = io.WriteString(w, r.URL.Path)
	}, nil)
	c, r := f.dial()
	_, _ = io.WriteString(c, "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\nGE")
	<-started
	for _, b := range "T /3 HTTP/1.1\r\nHost: a\r\n\r\n" {
		_, _ = io.WriteString(c, string(b))
	}
	release <- struct{}{}
	for n := range 3 {
		if n > 0 {
			<-started
			release <- struct{}{}
		}
		if status, text := f.answer(r, "GET"); status != http.StatusOK || text != fmt.Sprint("/", n+1) {
			t.Errorf("response %d = %d %q, want 200 \"/%d\"", n, status, text, n+1)
		}
	}
}

// The time limit for a head applies to the second request of a connection too.
func TestSlowHeadsEnd(t *testing.T) {
	t.Parallel()
	f := newFront(t, func(http.ResponseWriter, *http.Request) {},
		func(_ *front, h *http.Server) { h.ReadHeaderTimeout, h.IdleTimeout = 100*time.Millisecond, time.Hour })
	for _, half := range []string{"GET /b HTTP", "GET /b HTTP/1.1\r\nHost: a\r\n"} {
		c, r := f.dial()
		_, _ = io.WriteString(c, get+"\r\n"+half)
		_, _ = io.Copy(io.Discard, r)
	}
}

// A refusal reaches a client that is still sending.
func TestRefusalsArrive(t *testing.T) {
	t.Parallel()
	f := newFront(t, func(http.ResponseWriter, *http.Request) { t.Error("the handler was called, want no call") }, nil)
	for range 20 {
		c, r := f.dial()
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_, _ = c.Write(append([]byte(post+te+"Content-Length: 200000\r\n\r\n"), make([]byte, 200_000)...))
		}()
		if status, text := f.answer(r, "POST"); status != http.StatusBadRequest || text != twoLengths.Error()+"\n" {
			t.Errorf("response = %d %q, want 400 %q", status, text, twoLengths.Error()+"\n")
		}
		c.Close()
		<-sent
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.refused) != 20 || f.refused[0] != twoLengths {
		t.Errorf("Refused was called with %v, want 20 times %v", f.refused, twoLengths)
	}
}

// A bad chunk is an error of the body, with a reason.
func TestBadChunksInABody(t *testing.T) {
	t.Parallel()
	bodies := make(chan error, 1)
	f := newFront(t, func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		bodies <- err
		if bad := RefusedIn(r.Context()); bad != badChunk || !fault.Is(bad, fault.Invalid) {
			t.Errorf("RefusedIn = %v, want %v", bad, badChunk)
		}
	}, nil)
	c, r := f.dial()
	_, _ = io.WriteString(c, post+te+"Expect: 100-continue\r\n\r\n")
	if status, _ := f.answer(r, "POST"); status != http.StatusContinue {
		t.Fatalf("status = %d, want 100", status)
	}
	_, _ = io.WriteString(c, "3\r\nabc\r\n0x3\r\nabc\r\n0\r\n\r\n"+get+"\r\n")
	if err := <-bodies; !errors.Is(err, badChunk) {
		t.Errorf("error of the body = %v, want %v", err, badChunk)
	}
	_, _ = f.answer(r, "POST")
	if rest, _ := io.ReadAll(r); len(rest) > 0 {
		t.Errorf("response to the following request = %q, want none", rest)
	}
}

// A bad chunk of the next request, which came together with a request, does not end that request.
func TestBadChunkOfTheNextRequest(t *testing.T) {
	t.Parallel()
	for one, bad := range map[string]string{get + "\r\n": "0x3\r\nabc\r\n",
		post + "Content-Length: 3\r\n\r\nabc": "4\r\n00000\r\n0\r\n\r\n"} {
		started, release := make(chan struct{}, 2), make(chan struct{}, 2)
		f := newFront(t, func(w http.ResponseWriter, r *http.Request) {
			_, err := io.Copy(io.Discard, r.Body)
			started <- struct{}{}
			<-release
			why := RefusedIn(r.Context())
			if len(r.TransferEncoding) > 0 && why != nil {
				http.Error(w, why.Error(), why.Status)
			} else if err != nil || r.Context().Err() != nil || why != nil {
				t.Errorf("error of the body = %v, of the context = %v, RefusedIn = %v, want none of the first request", err,
					r.Context().Err(), why)
			}
		}, nil)
		c, r := f.dial()
		_, _ = io.WriteString(c, one+post+te+"\r\n"+bad)
		<-started
		_, _ = io.WriteString(c, "more")
		time.Sleep(10 * time.Millisecond) // net/http watches the connection meanwhile
		release <- struct{}{}
		if status, _ := f.answer(r, "GET"); status != http.StatusOK {
			t.Errorf("status of the first request = %d, want 200", status)
		}
		release <- struct{}{}
		if status, text := f.answer(r, "POST"); status != http.StatusBadRequest || text != badChunk.Error()+"\n" {
			t.Errorf("response to the second request = %d %q, want 400 %q", status, text, badChunk.Error()+"\n")
		}
		c.Close()
	}
}

// A client that has sent more than was read receives the refusal, and then the end of the connection. It is not reset.
func TestRefusedBodyIsAnswered(t *testing.T) {
	t.Parallel()
	f := newFront(t, func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		if bad := RefusedIn(r.Context()); err != nil && bad != nil {
			http.Error(w, bad.Error(), bad.Status)
		}
	}, nil)
	c, r := f.dial()
	_, _ = io.WriteString(c, post+te+"Expect: 100-continue\r\n\r\n")
	if status, _ := f.answer(r, "POST"); status != http.StatusContinue {
		t.Fatalf("status = %d, want 100", status)
	}
	_, _ = io.WriteString(c, "1\r\nab"+strings.Repeat("x", 32<<10)) // fits into the buffers of the kernel
	if status, text := f.answer(r, "POST"); status != http.StatusBadRequest || text != badChunk.Error()+"\n" {
		t.Errorf("response = %d %q, want 400 %q", status, text, badChunk.Error()+"\n")
	}
	if rest, err := io.ReadAll(r); len(rest) > 0 || err != nil {
		t.Errorf("ReadAll after the response = %q, %v, want an empty text, nil", rest, err)
	}
	c.Close()
}

// script is a connection whose Reads return the parts.
type script struct {
	net.Conn
	parts []string
}

func (s *script) Read(p []byte) (int, error) {
	if len(s.parts) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.parts[0])
	if s.parts[0] = s.parts[0][n:]; s.parts[0] == "" {
		s.parts = s.parts[1:]
	}
	return n, nil
}

// Reads pass on accepted requests unchanged, whatever the size of the parts.
func TestReadsAreComplete(t *testing.T) {
	t.Parallel()
	one, two := requests["a body"], requests["trailers"]
	stream := one + two + one + two
	for _, length := range []int{1, 2, 3, 10, 4096} {
		for _, cut := range []int{1, 7, len(one), len(one) + 3, len(stream)} {
			c := &conn{Conn: &script{parts: []string{stream[:cut], stream[cut:]}}, guard: New(Options{})}
			var got []byte
			for p := make([]byte, length); ; {
				n, err := c.Read(p)
				got = append(got, p[:n]...)
				if err != nil {
					break
				}
			}
			if string(got) != stream {
				t.Errorf("Reads of %d bytes after a part of %d = %q, want %q", length, cut, got, stream)
			}
		}
	}
}

// After a switch of protocols, nothing is lost of the bytes that follow the request.
func TestReleasedConnection(t *testing.T) {
	t.Parallel()
	one := requests["a body"]
	c := &conn{Conn: &script{parts: []string{one + "\x00 others", " and more"}}, guard: New(Options{})}
	p := make([]byte, 4096)
	if n, err := c.Read(p); err != nil || string(p[:n]) != one {
		t.Fatalf("Read = %q, %v, want %q, nil", p[:n], err, one)
	}
	if n, err := c.Read(p[:1]); n != 0 || err != nil {
		t.Fatalf("Read of one byte during the response = %d, %v, want 0, nil", n, err)
	}
	New(Options{}).State(c, http.StateHijacked)
	if got, err := io.ReadAll(c); err != nil || string(got) != "\x00 others and more" {
		t.Errorf("ReadAll after the switch = %q, %v, want %q, nil", got, err, "\x00 others and more")
	}
}

// A guarded connection has the methods that net/http and package bulk look for.
func TestMethods(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	g := New(Options{})
	for name, below := range map[string]net.Listener{"TCP": l, "TLS": tls.NewListener(l, &tls.Config{})} {
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c, err := g.Listen(below).Accept()
		if err != nil {
			t.Fatal(err)
		}
		_, kernel := c.(io.ReaderFrom)
		_, state := c.(interface{ ConnectionState() tls.ConnectionState })
		_, half := c.(interface{ CloseWrite() error })
		inner, ok := c.(interface{ NetConn() net.Conn })
		if !ok || !half || kernel != (name == "TCP") || state != (name == "TLS") {
			t.Errorf("%s: has ReadFrom %v, ConnectionState %v, CloseWrite %v, NetConn %v, want %v, %v, true, true", name, kernel,
				state, half, ok, name == "TCP", name == "TLS")
		} else if _, secure := inner.NetConn().(*tls.Conn); secure != state {
			t.Errorf("%s: NetConn is a %T, want a *tls.Conn: %v", name, inner.NetConn(), state)
		}
		if n, err := io.Copy(c, bytes.NewReader(nil)); n != 0 || err != nil {
			t.Error(err)
		}
		c.Close()
		client.Close()
	}
	if !strings.Contains(badChunk.Error(), "hexadecimal") || badChunk.Unwrap() == nil {
		t.Errorf("badChunk = %q, want a text with \"hexadecimal\"", badChunk)
	}
}
