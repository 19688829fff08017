package githttp_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/gateway/resolve"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeNode is a router.Node made of functions; without them it knows no repository.
type fakeNode struct {
	router.Node
	advertise func(session node.Session) ([]byte, error)
	serve     func(ctx context.Context, request io.Reader, reply node.ResponseWriter) (node.Outcome, error)
}

func (n *fakeNode) Advertise(_ context.Context, repo git.RepoPath, session node.Session,
	reply node.ResponseWriter) (node.Outcome, error) {
	if n.advertise == nil {
		return node.Outcome{}, fault.New(fault.NotFound, "no repository %s here", repo)
	}
	answer, err := n.advertise(session)
	if err == nil {
		reply.SetLength(int64(len(answer)))
		_, err = reply.Write(answer)
	}
	return node.Outcome{}, err
}

func (n *fakeNode) UploadPack(ctx context.Context, repo git.RepoPath, _ node.Session, request io.Reader,
	reply node.ResponseWriter) (node.Outcome, error) {
	if n.serve == nil {
		return node.Outcome{}, fault.New(fault.NotFound, "no repository %s here", repo)
	}
	return n.serve(ctx, request, reply)
}

func (n *fakeNode) ReceivePack(ctx context.Context, repo git.RepoPath, s node.Session, _ node.Pusher, request io.Reader,
	reply node.ResponseWriter) (
	node.Outcome, error) {
	return n.UploadPack(ctx, repo, s, request, reply)
}

// server is a gateway on a socket, set up as the serve role does it.
type server struct {
	t       *testing.T
	addr    string
	handler *githttp.Handler
	router  *router.Router
	pump    *bulk.Pump
	metrics *prometheus.Registry
	log     *lockedBuffer
	http    *lockedBuffer // what net/http itself logs
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

type options struct {
	small, bulk           int
	maxBody, memory       int64
	readStall, writeStall time.Duration
	wrap                  func(net.Listener) net.Listener
	auth                  gateway.Auth
	maxPush               int64
	pages                 githttp.Pages
	sessions              githttp.Sessions
	hooks                 githttp.Hooks
	application           githttp.Application
	resolver              resolve.Resolver
	pageLane              int
	lfs                   *gateway.LFS
	corsOrigins           []string
	api                   bool
	timeLimit             time.Duration
}

// serve begins a server in front of one node.
func serve(t *testing.T, n router.Node, o options) *server {
	t.Helper()
	return serveRoutes(t, []router.Route{{Replicas: []*router.Replica{{Name: "local", Node: n}}}}, o)
}

// serveRoutes begins a server in front of several nodes.
func serveRoutes(t *testing.T, routes []router.Route, o options) *server {
	t.Helper()
	for _, d := range []struct {
		field *int
		value int
	}{{&o.small, 1000}, {&o.bulk, 1000}, {&o.pageLane, 1000}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if o.maxBody == 0 {
		o.maxBody = 1 << 20
	}
	if o.memory == 0 {
		o.memory = 1 << 30
	}
	if o.readStall == 0 {
		o.readStall = time.Minute
	}
	if o.writeStall == 0 {
		o.writeStall = time.Minute
	}
	s := &server{t: t, metrics: prometheus.NewRegistry(), log: &lockedBuffer{}, http: &lockedBuffer{}}
	s.pump = bulk.NewPump(bulk.PumpOptions{Width: 2, Narrow: 1, Registerer: s.metrics})
	lanes := admit.NewLanes(admit.Sizes{Small: o.small, Hit: o.bulk, Cold: o.bulk, Push: o.bulk, Pages: o.pageLane})
	memory := admit.NewBudget("requests", o.memory)
	lanes.Small.Watch(s.pump)
	admit.NewMetrics(lanes, memory, s.metrics)
	s.router = router.New(s.metrics)
	if err := s.router.Set(routes); err != nil {
		t.Fatal(err)
	}
	handler := githttp.New(githttp.Options{Gateway: &gateway.Gateway{
		Router: s.router, Pump: s.pump, Lanes: lanes, Memory: memory, Metrics: gateway.NewMetrics(s.metrics),
		Log: slog.New(slog.NewTextHandler(s.log, nil)), MaxBody: o.maxBody, ReadStall: o.readStall,
		Auth: o.auth, MaxPush: o.maxPush, TimeLimit: o.timeLimit, Resolver: o.resolver, LFS: o.lfs,
	}, Pages: o.pages, Sessions: o.sessions, Hooks: o.hooks, Application: o.application, CORSOrigins: o.corsOrigins,
		API: o.api})
	s.handler = handler
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	l = handler.Listen(l, o.writeStall)
	if o.wrap != nil {
		l = o.wrap(l)
	}
	guard := httpguard.New(httpguard.Options{Refused: handler.Refused})
	l = guard.Listen(l)
	h := &http.Server{
		Handler: handler, ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return guard.Context(bulk.Serve(ctx, c),
				c)
		}, ConnState: guard.State,
		ErrorLog: slog.NewLogLogger(slog.NewTextHandler(s.http, nil), slog.LevelError), Protocols: new(http.Protocols),
	}
	h.Protocols.SetHTTP1(true)
	served := make(chan struct{})
	go func() { defer close(served); _ = h.Serve(l) }()
	t.Cleanup(func() {
		limit, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := h.Shutdown(limit); err != nil {
			t.Errorf("Shutdown error = %v, want none", err)
			h.Close()
		}
		<-served
		s.checkAtRest()
	})
	return s
}

// value is a metric's value, named as in "packhorse_lane_running{lane=small}"; of a histogram, how much it has
// observed.
func (s *server) value(name string) float64 {
	s.t.Helper()
	families, err := s.metrics.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			full := f.GetName()
			if labels != nil {
				full += "{" + strings.Join(labels, ",") + "}"
			}
			if full == name {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return 0
}

// checkAtRest finds lanes, turns and marks of small requests that were not given back.
func (s *server) checkAtRest() {
	s.t.Helper()
	for _, lane := range []string{"small", "hit", "cold", "push", "pages"} {
		if n := s.value("packhorse_lane_running{lane=" + lane + "}"); n != 0 {
			s.t.Errorf("requests in the lane %s = %v, want 0", lane, n)
		}
	}
	if n := s.value("packhorse_request_memory_bytes"); n != 0 {
		s.t.Errorf("bytes of the memory of requests = %v, want 0", n)
	}
	for _, n := range s.router.Status() {
		if n.InFlight != 0 {
			s.t.Errorf("requests in flight at the node %s = %d, want 0", n.Name, n.InFlight)
		}
	}
	if n := s.pump.Running(); n != 0 {
		s.t.Errorf("running turns of the pump = %d, want 0", n)
	}
	if !eventually(func() bool { return s.pump.Width() == 2 }) {
		s.t.Errorf("width of the pump = %d, want 2", s.pump.Width())
	}
}

// eventually asks for a while whether a state that nothing announces has come.
func eventually(is func() bool) bool { return gittest.Eventually(is) }

// connection is a client that writes what it likes.
type connection struct {
	*net.TCPConn
	t *testing.T
	r *bufio.Reader
}

func (s *server) dial() *connection { return s.dialFrom("127.0.0.1") }

// dialFrom connects from an address of this machine's, of which Linux has all of 127.0.0.0/8.
func (s *server) dialFrom(address string) *connection {
	s.t.Helper()
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	c, err := from.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return &connection{TCPConn: c.(*net.TCPConn), t: s.t, r: bufio.NewReader(c)}
}

func (c *connection) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatal(err)
	}
}

// answer reads one response; the error is that of its body.
func (c *connection) answer() (*http.Response, string, error) {
	c.t.Helper()
	response, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Fatalf("error = %v, want a response", err)
	}
	body, err := io.ReadAll(response.Body)
	return response, string(body), err
}

// closed reports whether the server ends the connection without further bytes.
func (c *connection) closed() bool {
	_, err := c.r.ReadByte()
	timeout, ok := err.(net.Error)
	return err != nil && (!ok || !timeout.Timeout())
}

const lsRefs = "0014command=ls-refs\n0000"

// post is the head of a fetch or ls-refs request.
func post(headers ...string) string {
	return "POST /repo/git-upload-pack HTTP/1.1\r\nHost: git.example\r\nContent-Type: " +
		"application/x-git-upload-pack-request\r\n" +
		"Git-Protocol: version=2\r\n" + strings.Join(append(headers, "", ""), "\r\n")
}

// readAll takes a request in, down to its flush packet.
func readAll(request io.Reader) (lines []string, err error) {
	packets := pktline.NewReader(request)
	for {
		kind, p, err := packets.Line()
		if fault.Is(err, fault.Exhausted) {
			return nil, err
		} else if err != nil {
			return nil, fault.Wrap(fault.Invalid, "bad request", err)
		}
		if kind == pktline.Flush {
			return lines, nil
		}
		lines = append(lines, string(p))
	}
}

// echo answers with how much it was sent.
func echo(_ context.Context, request io.Reader, reply node.ResponseWriter) (node.Outcome, error) {
	lines, err := readAll(request)
	if err != nil {
		return node.Outcome{}, err
	}
	_, err = reply.Write(pktline.AppendFlush(pktline.AppendLine(nil,
		strings.Join(lines, " ")[:min(100, len(strings.Join(lines, " ")))])))
	return node.Outcome{Command: protocol.CommandLsRefs}, err
}

func advertise(session node.Session) ([]byte, error) {
	return pktline.AppendFlush(pktline.AppendLine(nil, "version "+session.Version.String()[1:])), nil
}
