package clients

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a listener with limits, and its clients.
type world struct {
	*testing.T
	limiter *Limiter
	l       net.Listener
	conns   chan net.Conn // accepted, once accepted is called
	log     strings.Builder
}

func newWorld(t *testing.T, o LimiterOptions) *world {
	t.Helper()
	w := &world{T: t}
	o.Name, o.Metrics, o.Log = "test", NewMetrics(nil), slog.New(slog.NewTextHandler(&w.log, nil))
	w.limiter = NewLimiter(o)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.l = w.limiter.ByAddress(w.limiter.Listen(l))
	t.Cleanup(func() { w.l.Close() })
	return w
}

// dial opens a connection from an address of loopback.
func (w *world) dial(from string) net.Conn {
	w.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.Dial("tcp", w.l.Addr().String())
	if err != nil {
		w.Skip("this system has no address ", from, ": ", err)
	}
	w.Cleanup(func() { c.Close() })
	return c
}

// accepted opens a connection and accepts it.
func (w *world) accepted(from string) (client net.Conn, server *Conn) {
	w.Helper()
	client = w.dial(from)
	w.accepting()
	c := <-w.conns
	w.Cleanup(func() { c.Close() })
	return client, ConnOf(c)
}

// accepting accepts connections until the listener is closed.
func (w *world) accepting() {
	if w.conns != nil {
		return
	}
	w.conns = make(chan net.Conn)
	go func() {
		for {
			c, err := w.l.Accept()
			if err != nil {
				return
			}
			w.conns <- c
		}
	}()
}

// refused opens a connection that is refused, and reads the answer.
func (w *world) refused(from string) string {
	w.Helper()
	c := w.dial(from)
	w.accepting()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	answer, err := io.ReadAll(c)
	if err != nil {
		w.Fatalf("a refused client reads %q, %v", answer, err)
	}
	return string(answer)
}

// open reports whether a connection is still open on the client's side.
func open(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	e, ok := err.(net.Error)
	return ok && e.Timeout()
}

func (w *world) want(open, idle, closed, refused int) {
	w.Helper()
	gotOpen, gotIdle := w.limiter.counts()
	gotClosed, gotRefused := testutil.ToFloat64(w.limiter.Metrics.closed.WithLabelValues("test", byTotal))+
		testutil.ToFloat64(w.limiter.Metrics.closed.WithLabelValues("test", byAddress)),
		testutil.ToFloat64(w.limiter.Metrics.refused.WithLabelValues("test", byTotal))+
			testutil.ToFloat64(w.limiter.Metrics.refused.WithLabelValues("test", byAddress))
	if gotOpen != open || gotIdle != idle || int(gotClosed) != closed || int(gotRefused) != refused {
		w.Errorf("%d open, %d idle, %v closed, %v refused; want %d, %d, %d, %d", gotOpen, gotIdle, gotClosed, gotRefused,
			open, idle, closed, refused)
	}
}

// TestOldestIdle: at the limit the connection that has been idle for the longest time goes, and never one with a
// running request.
func TestOldestIdle(t *testing.T) {
	w := newWorld(t, LimiterOptions{Connections: 3, PerAddress: 10, Answer: []byte("too many\n")})
	first, a := w.accepted("127.0.0.1")
	second, b := w.accepted("127.0.0.1")
	third, c := w.accepted("127.0.0.1")
	a.Running()
	c.Receiving() // half a request
	b.Running()
	b.Idle() // between two requests, for less time than c
	_, d := w.accepted("127.0.0.1")
	w.want(3, 2, 1, 0)
	if open(third) || !open(first) || !open(second) {
		t.Errorf("open: first %v, second %v, third %v, want only the third closed", open(first), open(second), open(third))
	}
	c.Running() // it is gone
	b.Running()
	d.Running()
	w.want(3, 0, 1, 0)
	if got := w.refused("127.0.0.1"); got != "too many\n" {
		t.Errorf("answer to the refused client = %q, want %q", got, "too many\n")
	}
	w.want(3, 0, 1, 1)
	if n := w.limiter.Recent(); n != 1 {
		t.Errorf("Recent() = %d, want 1", n)
	}
	if log := w.log.String(); strings.Count(log, "connection refused") != 1 ||
		!strings.Contains(log, "reason=connections") {
		t.Errorf("log = %s, want one refusal for reason=connections", log)
	}
	if !open(first) || !open(second) {
		t.Error("a connection with a running request was closed, want it open")
	}
	a.Close()
	a.Close()
	w.want(2, 0, 1, 1)
}

// TestByAddress exceeds the limit of an address, which closes idle connections of this address only.
func TestByAddress(t *testing.T) {
	w := newWorld(t, LimiterOptions{
		Connections: 100, PerAddress: 2, Exempt: func(a netip.Addr) bool { return a == netip.MustParseAddr("127.0.0.9") },
	})
	other, _ := w.accepted("127.0.0.2")
	first, _ := w.accepted("127.0.0.1")
	_, b := w.accepted("127.0.0.1")
	b.Running()
	_, c := w.accepted("127.0.0.1")
	w.want(3, 2, 1, 0)
	if open(first) || !open(other) {
		t.Errorf("open: first %v, other %v, want only the first closed", open(first), open(other))
	}
	c.Running()
	if got := w.refused("127.0.0.1"); got != "" {
		t.Errorf("answer to the refused client = %q, want none", got)
	}
	w.want(3, 1, 1, 1)
	for range 5 { // of a proxy, all clients come from one address
		w.accepted("127.0.0.9")
	}
	w.want(8, 6, 1, 1)
	b.Close()
	c.Close()
	if _, there := w.limiter.sources[netip.MustParsePrefix("127.0.0.1/32")]; there {
		t.Error("an address without connections is in the table, want it removed")
	}
}

// TestReceiving: a request that gets on keeps its connection before one that does not.
func TestReceiving(t *testing.T) {
	w := newWorld(t, LimiterOptions{Connections: 2, PerAddress: 2})
	fast, a := w.accepted("127.0.0.1")
	slow, b := w.accepted("127.0.0.1")
	a.Receiving()
	b.Receiving()
	go fast.Write(make([]byte, leastProgress)) //nolint:errcheck // what comes is counted
	if _, err := io.CopyN(io.Discard, a, leastProgress); err != nil {
		t.Fatal(err)
	}
	w.accepted("127.0.0.1")
	if open(slow) || !open(fast) {
		t.Errorf("open: fast %v, slow %v, want only the slow one closed", open(fast), open(slow))
	}
}

// TestServer uses the connection states of net/http, so that connections with a running request stay open.
func TestServer(t *testing.T) {
	w := newWorld(t, LimiterOptions{Connections: 2, PerAddress: 2})
	running, finish := make(chan *Conn), make(chan struct{})
	s := &http.Server{ConnState: w.limiter.State, ConnContext: WithConn,
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			running <- ConnFrom(r.Context())
			<-finish
		})}
	go s.Serve(w.l) //nolint:errcheck // it is closed
	defer s.Close()
	ask := func() net.Conn {
		c := w.dial("127.0.0.1")
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
		return c
	}
	first, second := ask(), ask()
	if <-running == nil || <-running == nil {
		t.Fatal("connection in the request's context = nil, want one")
	}
	w.want(2, 0, 0, 0)
	third := w.dial("127.0.0.1")
	if _, err := third.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("read on a connection too many: error = %v, want EOF", err)
	}
	close(finish)
	for _, c := range []net.Conn{first, second} {
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Errorf("read after a running request: error = %v, want none", err)
		}
	}
}
