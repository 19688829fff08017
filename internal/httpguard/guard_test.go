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
	reads   chan int // bytes that each Read of the kernel gave; nil: nobody asks
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
	go func() { defer close(served); _ = h.Serve(g.Listen(&tellingListener{l, f.reads})) }()
	t.Cleanup(func() {
		h.Close()
		<-served
	})
	return f
}

// tellingListener makes connections that tell how much was read.
type tellingListener struct {
	net.Listener
	reads chan int
}

func (l *tellingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil && l.reads != nil {
		c = &tellingConn{c, l.reads}
	}
	return c, err
}

type tellingConn struct {
	net.Conn
	reads chan int
}

func (c *tellingConn) Read(p []byte) (int, error) {
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

// answer reads one.
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

// What comes while a request is answered is judged once that is over; of it net/http takes the first byte before, to
// notice that the client is there.
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
					t.Errorf("the first request is given up: %v", err)
				}
			}, func(f *front, _ *http.Server) { f.reads = make(chan int, 100) })
			c, r := f.dial()
			_, _ = io.WriteString(c, get+"\r\n")
			<-started
			<-f.reads
			_, _ = io.WriteString(c, next)
			if n := <-f.reads; n != 1 {
				t.Errorf("%d bytes are read ahead", n)
			}
			release <- struct{}{}
			if status, _ := f.answer(r, "GET"); status != http.StatusOK {
				t.Errorf("before %q: status %d", next, status)
			}
			if status, text := f.answer(r, "GET"); status != why.Status || text != why.Error()+"\n" {
				t.Errorf("%q: %d %q", next, status, text)
			}
			c.Close()
		})
	}
}

// A client that goes away during an answer is noticed, also one that has asked for more with its request.
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

// What comes at once, and piece by piece meanwhile, is answered in its order.
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
			t.Errorf("%d: %d %q", n, status, text)
		}
	}
}

// A client that begins its next request and does not go on is cut off, as one of the first: it is not idle.
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

// A refusal reaches a client that has more to send; one for HEAD has no body.
func TestRefusalsArrive(t *testing.T) {
	t.Parallel()
	f := newFront(t, func(http.ResponseWriter, *http.Request) { t.Error("a handler is asked") }, nil)
	for range 20 {
		c, r := f.dial()
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_, _ = c.Write(append([]byte(post+te+"Content-Length: 200000\r\n\r\n"), make([]byte, 200_000)...))
		}()
		if status, text := f.answer(r, "POST"); status != http.StatusBadRequest || text != twoLengths.Error()+"\n" {
			t.Errorf("%d %q", status, text)
		}
		c.Close()
		<-sent
	}
	c, r := f.dial()
	_, _ = io.WriteString(c, "HEAD http://a/ HTTP/1.1\r\nHost: a\r\n\r\n")
	if status, _ := f.answer(r, "HEAD"); status != http.StatusBadRequest {
		t.Errorf("status %d", status)
	}
	if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
		t.Errorf("HEAD: %q, %v", rest, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.refused) != 21 || f.refused[20] != badTarget {
		t.Errorf("told of %v", f.refused)
	}
}

// A bad chunk that comes during the answer is an error of the body, and has a name.
func TestBadChunksInABody(t *testing.T) {
	t.Parallel()
	bodies := make(chan error, 1)
	f := newFront(t, func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		bodies <- err
		if bad := RefusedIn(r.Context()); bad != badChunk || !fault.Is(bad, fault.Invalid) {
			t.Errorf("refused in the context: %v", bad)
		}
	}, nil)
	c, r := f.dial()
	_, _ = io.WriteString(c, post+te+"Expect: 100-continue\r\n\r\n")
	if status, _ := f.answer(r, "POST"); status != http.StatusContinue {
		t.Fatalf("status %d", status)
	}
	_, _ = io.WriteString(c, "3\r\nabc\r\n0x3\r\nabc\r\n0\r\n\r\n"+get+"\r\n")
	if err := <-bodies; !errors.Is(err, badChunk) {
		t.Errorf("the body ends with %v", err)
	}
	_, _ = f.answer(r, "POST")
	if rest, _ := io.ReadAll(r); len(rest) > 0 {
		t.Errorf("what stands behind is answered: %q", rest)
	}
}

// A client that has sent more when its body is refused reads why, and then the connection's end: no reset takes the
// answer from it.
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
		t.Fatal(status)
	}
	_, _ = io.WriteString(c, "1\r\nab"+strings.Repeat("x", 32<<10)) // as much as the kernel takes at once
	if status, text := f.answer(r, "POST"); status != http.StatusBadRequest || text != badChunk.Error()+"\n" {
		t.Errorf("%d %q", status, text)
	}
	if rest, err := io.ReadAll(r); len(rest) > 0 || err != nil {
		t.Errorf("behind the answer: %q, %v", rest, err)
	}
	c.Close()
}

// script is a connection that gives what it is told to, a part with each Read.
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

// A Read goes to the end of a request, and nothing is lost, whatever comes at once and however much is asked for.
func TestReadsEndWithRequests(t *testing.T) {
	t.Parallel()
	one, two := requests["a body"], requests["trailers"]
	stream := one + two + one + two
	for _, length := range []int{2, 3, 10, 4096} { // one is net/http's look after the client
		for _, cut := range []int{1, 7, len(one), len(one) + 3, len(stream)} {
			c := &conn{Conn: &script{parts: []string{stream[:cut], stream[cut:]}}, guard: New(Options{})}
			var got []byte
			for p := make([]byte, length); ; {
				n, err := c.Read(p)
				got = append(got, p[:n]...)
				for _, end := range []int{len(one), len(one + two), len(one + two + one)} {
					if from := len(got) - n; from < end && len(got) > end {
						t.Fatalf("a Read goes from %d to %d, past %d", from, len(got), end)
					}
				}
				if err != nil {
					break
				}
			}
			if string(got) != stream {
				t.Errorf("%d bytes at a time, cut at %d: %q", length, cut, got)
			}
		}
	}
	c := &conn{Conn: &script{parts: []string{one + "\x00 others", " and more"}}, guard: New(Options{})}
	p := make([]byte, 4096)
	if n, err := c.Read(p); err != nil || string(p[:n]) != one {
		t.Fatalf("%q, %v", p[:n], err)
	}
	c.release()
	if rest, err := io.ReadAll(c); err != nil || string(rest) != "\x00 others and more" {
		t.Errorf("after a switch: %q, %v", rest, err)
	}
}

// What net/http and others look for in a connection is still there.
func TestWhatIsBelowStaysInReach(t *testing.T) {
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
			t.Errorf("%s: ReadFrom %v, state %v, half %v, below %v", name, kernel, state, half, ok)
		} else if _, secure := inner.NetConn().(*tls.Conn); secure != state {
			t.Errorf("%s: below is a %T", name, inner.NetConn())
		}
		if n, err := io.Copy(c, bytes.NewReader(nil)); n != 0 || err != nil {
			t.Error(err)
		}
		c.Close()
		client.Close()
	}
	if !strings.Contains(badChunk.Error(), "hexadecimal") || badChunk.Unwrap() == nil {
		t.Error("a refusal says nothing")
	}
}
