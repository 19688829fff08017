package remote_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/gateway/remote"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/gateway/web/crawl"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/archive"
	"github.com/packhorse-git/packhorse/internal/node/control"
	"github.com/packhorse-git/packhorse/internal/node/packcache"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	"github.com/packhorse-git/packhorse/internal/transport/sidechannel"
)

func TestMain(m *testing.M) {
	if address := os.Getenv(frontVariable); address != "" {
		if err := beSSH(address); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// lockedBuffer is a log that several goroutines write.
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

// options are the settings of a world. The zero value is the usual world.
type options struct {
	unix        bool
	inBand      bool
	small, bulk int    // limits of the node's lanes, 1,000 if 0
	onSmall     func() // called after each request of its small lane if not nil
	trust       control.Trust
	secret      func() string // of the gateway
	roadWait    time.Duration
	store       control.Store // of the node; nil: none
	stall       time.Duration
	source      packsource.Source // instead of git and the cache
	lfs         node.LFS          // of the node; nil: its own
	maxRequest  int64
	identity    *identity // TLS between the two, with certificates of both
	gate        *crawl.Gate
	anonymous   bool // callers have no names
}

// world is a gateway, a storage node, and the node's repositories. The node can go away and come back.
type world struct {
	t       testing.TB
	options options
	root    string
	node    *storage.Node
	runner  *process.Runner
	remote  *remote.Node
	url     string // of the gateway
	address string // of the node
	log     *lockedBuffer
	metrics *prometheus.Registry
	pump    *bulk.Pump
	routes  *router.Router
	boards  struct{ node, gateway *inflight.Board }

	channels *sidechannel.Server
	port     *http.Server
	served   chan struct{}
}

func newWorld(t testing.TB, o options) *world {
	t.Helper()
	w := &world{t: t, options: o, root: t.TempDir(), log: &lockedBuffer{}, metrics: prometheus.NewRegistry(),
		pump: bulk.NewPump(bulk.PumpOptions{})}
	w.boards.node, w.boards.gateway = inflight.NewBoard(), inflight.NewBoard()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log:\n%s", w.log)
		}
	})
	w.newNode()
	if o.unix {
		dir, err := os.MkdirTemp("", "node") // a socket's path is short
		w.do(err)
		t.Cleanup(func() { os.RemoveAll(dir) })
		w.address = "unix:" + filepath.Join(dir, "sock")
	}
	var gatewayTLS func() *tls.Config
	if o.identity != nil {
		w.options.trust.Certificates = true
		gatewayTLS = o.identity.client
	}
	w.serve()
	t.Cleanup(w.kill)
	var err error
	w.remote, err = remote.New(remote.Options{
		Name: "one", TLS: gatewayTLS, Address: w.address, Secret: o.secret, InBand: o.inBand,
		Channels: sidechannel.NewMetrics(w.metrics),
		Pump:     bulk.NewPump(bulk.PumpOptions{}),
		Log:      w.logger(),
	})
	w.do(err)
	t.Cleanup(func() { w.do(w.remote.Close()) })
	w.newGateway()
	return w
}

func (w *world) do(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// newNode stacks what the storage role does.
func (w *world) newNode() {
	source := w.options.source
	var pushes *receivepack.Server
	var archives *archive.Maker
	if source == nil {
		runner, err := process.New(process.Options{Git: "git",
			Registerer: w.metrics, Log: w.logger(),
			Classes: map[process.Class]process.Limits{
				packsource.ClassPack:     {Slots: 2, Queue: 100, Wait: time.Minute, Time: time.Minute},
				archive.Class:            {Slots: 2, Queue: 100, Wait: time.Minute, Time: time.Minute},
				receivepack.ClassReceive: {Slots: 4, Queue: 100, Wait: time.Minute, Time: 10 * time.Minute},
			}})
		w.do(err)
		w.runner = runner
		fromGit, err := packsource.NewGit(runner, packsource.GitOptions{Scratch: filepath.Join(w.t.TempDir(),
			"scratch"), Threads: 1})
		w.do(err)
		cache, err := packcache.Open(fromGit, packcache.Options{
			Dir: filepath.Join(w.t.TempDir(), "cache"), MaxBytes: 1 << 30,
			Log: w.logger(),
		})
		w.do(err)
		source = cache
		archives = &archive.Maker{Runner: runner, GitDir: fromGit.EmptyDir, Cache: cache}
		pushes, err = receivepack.New(receivepack.Options{
			Runner: runner, Agent: "test", Log: w.logger(),
			Scripts: filepath.Join(w.t.TempDir(), "hooks"), Journal: filepath.Join(w.t.TempDir(), "pushes"),
		})
		w.do(err)
		w.t.Cleanup(func() {
			w.do(cache.Close())
			limit, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			w.do(runner.Close(limit))
		})
	}
	var err error
	w.node, err = storage.New(uploadpack.New(source, uploadpack.Options{Agent: "test"}),
		storage.Options{Root: w.root, Log: w.logger(), Pushes: pushes, Archives: archives})
	w.do(err)
	w.t.Cleanup(func() { w.do(w.node.Close()) })
}

// serve opens the node's port, where it was before if there was one.
func (w *world) serve() {
	w.t.Helper()
	network, address := "tcp", "127.0.0.1:0"
	if path, ok := strings.CutPrefix(w.address, "unix:"); ok {
		network, address = "unix", path
	} else if w.address != "" {
		address = w.address
	}
	l, err := net.Listen(network, address)
	w.do(err)
	if network == "tcp" {
		w.address = l.Addr().String()
	}
	lane := func(n int) int {
		if n == 0 {
			return 1000
		}
		return n
	}
	w.channels = sidechannel.NewServer(sidechannel.Options{Pump: w.pump, Stall: w.options.stall,
		Metrics: sidechannel.NewMetrics(nil), Log: w.logger()})
	nodeLanes := lanes(lane(w.options.small), lane(w.options.bulk))
	if w.options.onSmall != nil {
		nodeLanes.Small.Watch(onServed(w.options.onSmall))
	}
	var sessions node.Sessions
	if w.options.lfs != nil {
		sessions = withLFS{w.node, w.options.lfs}
	}
	server := control.New(control.Options{
		Node: w.node, Sessions: sessions, Store: w.options.store, Board: w.boards.node, Channels: w.channels, Pump: w.pump,
		Lanes: nodeLanes,
		Trust: w.options.trust, Log: w.logger(), DataPathWait: w.options.roadWait,
		Stall: w.options.stall, MaxRequest: w.options.maxRequest,
	})
	w.port, w.served = server.HTTPServer(), make(chan struct{})
	port, served := w.port, w.served
	go func() {
		defer close(served)
		l = bulk.Listen(l, w.pump, time.Minute)
		if w.options.identity != nil {
			l = tls.NewListener(l, w.options.identity.server())
		}
		_ = port.Serve(l)
	}()
}

// withLFS is a node with other objects of Git LFS.
type withLFS struct {
	gitSessions
	node.LFS
}

type gitSessions interface {
	Advertise(context.Context, git.RepoPath, node.Session, node.ResponseWriter) (node.Outcome, error)
	UploadPack(context.Context, git.RepoPath, node.Session, io.Reader, node.ResponseWriter) (node.Outcome, error)
	ReceivePack(context.Context, git.RepoPath, node.Session, node.Pusher, io.Reader,
		node.ResponseWriter) (node.Outcome, error)
	Archive(context.Context, git.RepoPath, node.Session, node.Archive, node.ResponseWriter) (node.Outcome, error)
}

// kill closes the node's listener and connections, as the end of its process would.
func (w *world) kill() {
	w.port.Close()
	w.channels.Close()
	<-w.served
}

// onServed is an admit.Watcher that is called when a lane has served something.
type onServed func()

func (onServed) Began()    {}
func (f onServed) Served() { f() }
func (onServed) Ended()    {}

// everybody is a gateway.Auth for which all callers are one.
type everybody struct{}

func (everybody) Configured() bool { return true }

func (everybody) RefRules(context.Context, auth.Identity, git.RepoPath) (node.RefRules, error) {
	return node.RefRules{}, nil
}
func (everybody) Reader(context.Context, auth.Identity) func([]git.RepoPath) ([]bool, bool) {
	return nil
}
func (everybody) HTTP(*http.Request) (auth.Identity, error) { return auth.Identity{Name: "ada"}, nil }
func (everybody) May(context.Context, auth.Identity, git.RepoPath, auth.Operation) error {
	return nil
}

func (w *world) newGateway() {
	routes := router.New(nil)
	w.routes = routes
	w.do(routes.Set([]router.Route{{Replicas: []*router.Replica{{Name: "one", Node: w.remote, Weight: 1,
		Revisions: w.remote,
		Ready:     w.remote.Ready}}}}))
	pump := bulk.NewPump(bulk.PumpOptions{Registerer: w.metrics})
	var callers gateway.Auth = everybody{}
	if w.options.anonymous {
		callers = nil
	}
	handler := githttp.New(githttp.Options{API: true, Gate: w.options.gate, Gateway: &gateway.Gateway{
		Router: routes, Board: w.boards.gateway, Auth: callers, Pump: pump, Lanes: lanes(1000, 1000),
		Memory:  admit.NewBudget("requests", 1<<30),
		Metrics: gateway.NewMetrics(w.metrics), Log: w.logger(), MaxBody: 64 << 20,
		ReadStall: time.Minute,
	}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.do(err)
	w.url = "http://" + l.Addr().String()
	h := &http.Server{Handler: handler, ErrorLog: slog.NewLogLogger(w.logger().Handler(), slog.LevelDebug)}
	served := make(chan struct{})
	go func() { defer close(served); _ = h.Serve(handler.Listen(l, time.Minute)) }()
	w.t.Cleanup(func() {
		limit, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := h.Shutdown(limit); err != nil {
			w.t.Errorf("the gateway does not come to rest: %v", err)
			h.Close()
		}
		<-served
	})
}

// value is the sum of a metric's values with the given labels, as in "packhorse_copy_bytes_total", "path=user".
func (w *world) value(name string, labels ...string) (sum float64) {
	w.t.Helper()
	families, err := w.metrics.Gather()
	w.do(err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	metric:
		for _, m := range f.GetMetric() {
			for _, want := range labels {
				found := false
				for _, l := range m.GetLabel() {
					found = found || l.GetName()+"="+l.GetValue() == want
				}
				if !found {
					continue metric
				}
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

// repo makes a repository below the root, with a file of size bytes that no compression makes smaller.
func (w *world) repo(path string, size int) *gittest.Repo {
	w.t.Helper()
	repo := gittest.InitAt(w.t, filepath.Join(w.root, path))
	text := make([]byte, size)
	rnd := rand.NewChaCha8([32]byte{1})
	_, _ = rnd.Read(text)
	blob := repo.GitIn(string(text), "hash-object", "-w", "--stdin")
	tree := repo.GitIn("100644 blob "+blob+"\tdata\n", "mktree")
	repo.Git("update-ref", "refs/heads/main", repo.GitIn("one", "commit-tree", tree))
	return repo
}

// clone clones a repository by the gateway with a version of the protocol and compares what arrives.
func (w *world) clone(repo *gittest.Repo, path, version string, args ...string) {
	w.t.Helper()
	dir := filepath.Join(w.t.TempDir(), "clone")
	args = append([]string{"-c", "protocol.version=" + version, "clone", "-q", "--mirror"},
		append(args, w.url+"/"+path, dir)...)
	gittest.Run(w.t, "", "", args...)
	clone := gittest.At(w.t, dir)
	if got, want := clone.Git("for-each-ref"), repo.Git("for-each-ref"); got != want {
		w.t.Errorf("the clone's refs are\n%s\nwant\n%s", got, want)
	}
	if got, want := clone.Objects(), repo.Objects(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		w.t.Errorf("the clone has %d objects, want %d", len(got), len(want))
	}
}

// eventually asks for a while whether a state that nothing announces has come.
func eventually(is func() bool) bool { return gittest.Eventually(is) }

// answer is a node.ResponseWriter that records its calls.
type answer struct {
	bytes.Buffer
	length  int64
	bulk    int
	cold    bool // the argument of Bulk
	refusal error
	broken  error                 // of writes
	onWrite func(total int) error // called with each
}

func (a *answer) SetLength(n int64)       { a.length = n }
func (*answer) ReserveMemory(int64) error { return nil }

func (a *answer) StartBulk(cold bool) error {
	a.bulk++
	a.cold = cold
	return a.refusal
}
func (a *answer) Flush() error { return a.broken }
func (a *answer) Write(p []byte) (int, error) {
	if a.Len() > 64<<20 {
		return 0, errors.New("an answer without an end")
	}
	if a.onWrite != nil {
		if err := a.onWrite(a.Len() + len(p)); err != nil {
			return 0, err
		}
	}
	if a.broken != nil {
		return 0, a.broken
	}
	return a.Buffer.Write(p)
}

// discard is a reply that keeps nothing.
type discard struct{ n int64 }

func (*discard) SetLength(int64)      {}
func (*discard) StartBulk(bool) error { return nil }

func (*discard) ReserveMemory(int64) error     { return nil }
func (*discard) Flush() error                  { return nil }
func (d *discard) Write(p []byte) (int, error) { d.n += int64(len(p)); return len(p), nil }

var _ io.Writer = (*discard)(nil)

// ReadFrom hides that of the buffer.
func (a *answer) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{a}, r) }

// lanes are lanes of which those for long answers have one size.
func lanes(small, long int) admit.Lanes {
	return admit.NewLanes(admit.Sizes{Small: small, Hit: long, Cold: long, Push: long, Pages: long})
}
