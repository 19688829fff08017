package roles_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// frail is a storage node that fails each fetch until it is fine: each at another point before the first byte.
type frail struct {
	router.Node
	failed atomic.Int64
	fine   atomic.Bool
	ends   context.Context // what it gives up its sessions with
}

var errFrail = fault.New(fault.Unavailable, "the storage node is shutting down")

func (f *frail) UploadPack(ctx context.Context, repo git.RepoPath, session node.Session, request io.Reader,
	reply node.ResponseWriter) (
	node.Outcome, error) {
	if f.fine.Load() {
		return f.Node.UploadPack(ctx, repo, session, request, reply)
	}
	switch f.failed.Add(1) % 4 {
	case 0: // at once
		return node.Outcome{}, errFrail
	case 1: // with a part of the request read
		_, _ = io.CopyN(io.Discard, request, 50)
		return node.Outcome{}, errFrail
	case 2: // while the pack is made
		return f.Node.UploadPack(f.ends, repo, session, request, &frailReply{ResponseWriter: reply})
	default: // with the first byte of the answer
		return f.Node.UploadPack(ctx, repo, session, request, &frailReply{ResponseWriter: reply})
	}
}

// frailReply fails with the first byte.
type frailReply struct{ node.ResponseWriter }

func (*frailReply) Write([]byte) (int, error) { return 0, errFrail }
func (*frailReply) Flush() error              { return errFrail }

// newStorage makes a node for the repositories below a directory.
func newStorage(t *testing.T, root string) *storage.Node {
	t.Helper()
	runner, err := process.New(process.Options{Log: slog.New(slog.DiscardHandler),
		Classes: map[process.Class]process.Limits{
			packsource.ClassPack: {Slots: 2, Queue: 100, Wait: 5 * time.Minute, Time: 5 * time.Minute},
		}})
	if err != nil {
		t.Fatal(err)
	}
	source, err := packsource.NewGit(runner, packsource.GitOptions{Scratch: filepath.Join(t.TempDir(), "scratch")})
	if err != nil {
		t.Fatal(err)
	}
	node, err := storage.New(uploadpack.New(source, uploadpack.Options{Agent: "test"}), storage.Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		limit, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := runner.Close(limit); err != nil {
			t.Errorf("Close error = %v, want none", err)
		}
		node.Close()
	})
	return node
}

// serveReplicas begins a gateway in front of some replicas of all repositories.
func serveReplicas(t *testing.T, log io.Writer, replicas ...*router.Replica) (url string, routes *router.Router) {
	t.Helper()
	routes = router.New(nil)
	if err := routes.Set([]router.Route{{Replicas: replicas}}); err != nil {
		t.Fatal(err)
	}
	handler := githttp.New(githttp.Options{Gateway: &gateway.Gateway{
		Router: routes, Pump: bulk.NewPump(bulk.PumpOptions{}),
		Lanes:  admit.NewLanes(admit.Sizes{Small: 100, Hit: 100, Cold: 100}),
		Memory: admit.NewBudget("requests", 1<<30), Metrics: gateway.NewMetrics(nil),
		Log:     slog.New(slog.NewTextHandler(log, nil)),
		MaxBody: 64 << 20, ReadStall: 5 * time.Minute,
	}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &http.Server{Handler: handler}
	served := make(chan struct{})
	go func() { defer close(served); _ = h.Serve(handler.Listen(l, 5*time.Minute)) }()
	t.Cleanup(func() { h.Close(); <-served })
	return "http://" + l.Addr().String(), routes
}

// TestClonesWhileAReplicaFails lets git clone and fetch from two nodes, one of which fails, is drained, and comes back:
// each clone is whole.
func TestClonesWhileAReplicaFails(t *testing.T) {
	t.Parallel()
	origin := gittest.InitAt(t, filepath.Join(t.TempDir(), "app.git"))
	tip := origin.Commit("0")
	refs := &strings.Builder{}
	for i := range 1500 { // their want lines make a request that git packs with gzip
		if i%100 == 0 {
			tip = origin.Commit(fmt.Sprint("commit ", i), tip)
		}
		fmt.Fprintf(refs, "create refs/heads/branch-%d %s\n", i, tip)
	}
	origin.GitIn(refs.String(), "update-ref", "--stdin")
	origin.Git("update-ref", "refs/heads/main", tip.String())
	origin.Git("pack-refs", "--all")
	roots := [2]string{t.TempDir(), t.TempDir()}
	for _, root := range roots {
		if err := os.CopyFS(filepath.Join(root, "app.git"), os.DirFS(origin.Dir)); err != nil {
			t.Fatal(err)
		}
	}
	ends, cancel := context.WithCancel(t.Context())
	cancel()
	bad := &frail{Node: newStorage(t, roots[0]), ends: ends}
	var lines lockedBuilder
	url, routes := serveReplicas(t, &lines,
		&router.Replica{Name: "bad", Node: bad, Weight: 1000}, &router.Replica{Name: "good", Node: newStorage(t, roots[1])})

	want := origin.Objects()
	clones := func(phase string, n int) {
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				dir := filepath.Join(t.TempDir(), "clone")
				args := []string{"-c", fmt.Sprintf("protocol.version=%d", i%2*2), "clone", "-q", "--mirror", url + "/app", dir}
				if out, err := gittest.At(t, t.TempDir()).Try(args...); err != nil {
					t.Errorf("%s: git = %s, error = %v, want none", phase, out, err)
				} else if got := gittest.At(t, dir).Objects(); !slices.Equal(got, want) {
					t.Errorf("%s: a clone has %d objects, the origin %d", phase, len(got), len(want))
				}
			})
		}
		wg.Wait()
	}
	for bad.failed.Load() < 4 && !t.Failed() { // not many, as the good one comes first for a while after each
		clones("failing", 2)
	}
	if err := routes.Drain("bad"); err != nil {
		t.Fatal(err)
	}
	failed := bad.failed.Load()
	clones("drained", 2)
	if n := bad.failed.Load() - failed; n != 0 {
		t.Errorf("requests to a drained node = %d, want 0", n)
	}
	bad.fine.Store(true)
	if err := routes.Undrain("bad"); err != nil {
		t.Fatal(err)
	}
	before := routes.Status()[0].Served
	for routes.Status()[0].Served == before && !t.Failed() { // the other one may be free each time
		clones("back", 4)
	}
	if n := routes.Status()[0]; n.InFlight != 0 {
		t.Errorf("status after the drain = %+v, want nothing in flight", n)
	}
	for line := range strings.Lines(lines.String()) {
		if t.Failed() && !strings.Contains(line, "result=ok") {
			t.Log(line)
		}
	}
}

// lockedBuilder keeps a log.
type lockedBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuilder) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuilder) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
