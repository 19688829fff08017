package app

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

// asProcess in the environment makes this program something else than tests: a process that they start.
const asProcess = "PACKHORSE_APP_TEST"

func TestMain(m *testing.M) {
	switch what, arg, _ := strings.Cut(os.Getenv(asProcess), " "); what {
	case "crowd":
		os.Exit(crowd(arg))
	case "worker":
		os.Exit(workerProcess(arg))
	}
	goleak.VerifyTestMain(m)
}

// patience is for what has to happen, on whatever machine.
const patience = 2 * time.Minute

// front is a server with a proxy in it.
type front struct {
	*Proxy
	trusted clients.Proxies
	t       *testing.T
	address string
	records chan Record
	server  *httptest.Server
}

func newFront(t *testing.T, o Options) *front {
	t.Helper()
	return newFrontWith(t, o, (*httptest.Server).Start)
}

func newFrontWith(t *testing.T, o Options, start func(*httptest.Server)) *front {
	t.Helper()
	if o.Routing.Queue == (balance.Limits{}) {
		o.Routing.Queue.Queue = 1000
	}
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	f := &front{Proxy: p, t: t, records: make(chan Record, 1000)}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		record := p.Serve(r.Context(), wrapped{w}, r, f.trusted.Of(r))
		select {
		case f.records <- record:
		default:
		}
		if record.Cut {
			panic(http.ErrAbortHandler)
		}
	}))
	s.Config.ErrorLog = nil
	s.Config.ConnContext = bulk.Serve
	s.Listener = bulk.Listen(s.Listener, bulk.NewPump(bulk.PumpOptions{}), time.Minute)
	start(s)
	f.server, f.address = s, s.Listener.Addr().String()
	t.Cleanup(func() { s.CloseClientConnections(); s.Close(); p.Close() })
	return f
}

// wrapped is a writer around that of net/http, as others may put there.
type wrapped struct{ http.ResponseWriter }

func (w wrapped) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// raw sends bytes and gives all that comes back until the connection ends.
func (f *front) raw(request string) string {
	f.t.Helper()
	c := f.dial()
	defer c.Close()
	if _, err := io.WriteString(c, request); err != nil {
		f.t.Fatal(err)
	}
	b, _ := io.ReadAll(c) // a reset is an end, too
	return string(b)
}

func (f *front) dial() net.Conn {
	f.t.Helper()
	c, err := net.Dial("tcp", f.address)
	if err != nil {
		f.t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

// get is what a request for a path is answered with.
func (f *front) get(path string, fields ...string) (status int, header http.Header, body string, err error) {
	f.t.Helper()
	return f.do(http.MethodGet, path, nil, fields...)
}

func (f *front) do(method, path string, content io.Reader,
	fields ...string) (status int, header http.Header, body string, err error) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+f.address+path, content)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, field := range fields {
		name, value, _ := strings.Cut(field, ": ")
		r.Header.Add(name, value)
	}
	r.Close = true
	response, err := f.server.Client().Transport.RoundTrip(r)
	if err != nil {
		return 0, nil, "", err
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	return response.StatusCode, response.Header, string(b), err
}

// worker is an application worker of raw bytes: each connection is handed to a function.
type rawWorker struct {
	address string
	dials   atomic.Int32
	open    atomic.Int32
}

// serveRaw starts a worker; n counts its connections.
func serveRaw(t *testing.T, handle func(n int, c net.Conn, in *bufio.Reader)) *rawWorker {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, l, "http://"+l.Addr().String(), handle)
}

func serveOn(t *testing.T, l net.Listener, address string,
	handle func(n int, c net.Conn, in *bufio.Reader)) *rawWorker {
	w := &rawWorker{address: address}
	var running sync.WaitGroup
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	running.Go(func() {
		for n := 1; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.dials.Add(1)
			w.open.Add(1)
			mu.Lock()
			conns[c] = true
			mu.Unlock()
			running.Go(func() {
				defer func() {
					c.Close()
					w.open.Add(-1)
					mu.Lock()
					delete(conns, c)
					mu.Unlock()
				}()
				handle(n, c, bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range conns {
			c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return w
}

// request reads one request whole and gives its bytes, without the framing of chunks; empty after the end of the
// connection.
func request(in *bufio.Reader) string {
	var b strings.Builder
	length, isChunked := 0, false
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return ""
		}
		b.WriteString(line)
		if v, ok := strings.CutPrefix(line, "Content-Length: "); ok {
			for _, c := range strings.TrimSpace(v) {
				length = length*10 + int(c-'0')
			}
		}
		isChunked = isChunked || line == "Transfer-Encoding: chunked\r\n"
		if line == "\r\n" {
			break
		}
	}
	if isChunked {
		body, err := io.ReadAll(httputil.NewChunkedReader(in))
		if err != nil {
			return ""
		}
		_, _ = in.Discard(len("\r\n")) // after the last chunk
		return b.String() + string(body)
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(in, body); err != nil {
		return ""
	}
	return b.String() + string(body)
}

// say answers each request with the same bytes.
func say(answer string) func(int, net.Conn, *bufio.Reader) {
	return func(_ int, c net.Conn, in *bufio.Reader) {
		for request(in) != "" {
			if _, err := io.WriteString(c, answer); err != nil {
				return
			}
		}
	}
}

// echo answers each request with the request.
func echo(_ int, c net.Conn, in *bufio.Reader) {
	for {
		r := request(in)
		if r == "" {
			return
		}
		if _, err := io.WriteString(c, ok(r)); err != nil {
			return
		}
	}
}

func ok(body string) string {
	return "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: " + itoa(len(body)) + "\r\n\r\n" + body
}

// one is a single worker.
func one(address string) []WorkerOptions {
	return []WorkerOptions{{Name: "w0", Address: address, Slots: 1}}
}

// wait waits for a condition.
func wait(t *testing.T, what string, condition func() bool) {
	t.Helper()
	gittest.WaitFor(t, what, condition)
}

func writeFile(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// takeSlot takes a slot of a worker as a request does.
func takeSlot(ctx context.Context, p *Proxy) (*seat, error) {
	return (&exchange{p: p, ctx: ctx, r: httptest.NewRequest(http.MethodGet, "/", nil)}).take(nil)
}
