package receivepack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/pushrecovery"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a repository that is pushed to, behind a front of a few lines.
type world struct {
	*gittest.Repo
	t      testing.TB
	server *Server
	tables *repo.Tables
	url    string

	mu   sync.Mutex
	done []Update // arguments of Changed
	errs []error  // of Serve

	outcomes []node.Outcome // of Serve

	begun             []*Push // arguments of the Recorder
	ended             [][]Update
	refuse, refuseEnd error
	recorder          func(end bool)
	onWrite           func(p []byte)

	lfs   func(context.Context, lfs.Batch) ([]lfs.Status, error) // Target.LFS
	gates *Gates                                                 // Target.Gates
	// pushes run in shadows, which it may change; nil: in place
	shadow func(*testShadow)
	stored *storedWorld // pushes run in shadows of a store; nil: not
	rules  node.RefRules
}

// newWorld makes an empty repository that takes pushes; init goes to git init.
func newWorld(t testing.TB, o Options, init ...string) *world {
	t.Helper()
	return worldAt(t, o, gittest.Init(t, init...))
}

func worldAt(t testing.TB, o Options, r *gittest.Repo) *world {
	t.Helper()
	return worldBy(t, "git", o, r)
}

// worldBy is worldAt with a git program.
func worldBy(t testing.TB, program string, o Options, r *gittest.Repo) *world {
	t.Helper()
	runner, err := process.New(process.Options{Git: program, Classes: map[process.Class]process.Limits{
		ClassReceive: {Slots: 8, Queue: 100, Time: 10 * time.Minute}, ClassUpdate: {Slots: 4}, ClassHook: {Slots: 8,
			Queue: 100}, repo.ClassRefs: {Slots: 2, Queue: 100},
	}})
	if err != nil {
		t.Fatal(err)
	}
	o.Runner, o.Agent = runner, "test"
	if o.MaxOptions == 0 {
		o.MaxOptions = 10
	}
	if o.Scripts == "" {
		o.Scripts = filepath.Join(t.TempDir(), "scripts")
	}
	if o.Journal == "" {
		o.Journal = filepath.Join(t.TempDir(), "journal")
	}
	server, err := New(o)
	if err == nil {
		server.recovery.Delays = pushrecovery.Delays{Poll: time.Millisecond, Stable: 20 * time.Millisecond,
			Retry: time.Second}
		err = server.Recovery().Start(nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Repo: r, t: t, server: server, tables: repo.NewTables(runner)}
	if isInStore(t) {
		w.stored = &storedWorld{w: w}
	}
	front := httptest.NewServer(http.HandlerFunc(w.serve))
	w.url = front.URL + "/repo.git"
	t.Cleanup(func() {
		front.Close()
		if err := runner.Close(context.Background()); err != nil {
			t.Error(err)
		}
		server.Close()
	})
	return w
}

// open opens the repository as each request does.
func (w *world) open() *repo.Repo {
	w.t.Helper()
	dir, o := w.Dir, repo.Options{Tables: w.tables}
	if w.stored != nil {
		o.Place = w.stored.current()
		dir = w.stored.current().Dir()
	}
	r, err := repo.Open(dir, o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { r.Close() })
	return r
}

func (w *world) target() Target {
	path, _ := git.ParseRepoPath("team/app")
	target := Target{Path: path, LFS: w.lfs, Gates: w.gates, Changed: func(_ context.Context, done []Update) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.done = append(w.done, done...)
	}}
	switch {
	case w.stored != nil:
		target.Shadow = w.stored.newShadow()
	case w.shadow != nil:
		target.Repo, target.Shadow = w.open(), w.newShadow()
	default:
		target.Repo = w.open()
		return target
	}
	w.t.Cleanup(target.Shadow.Close)
	return target
}

func (w *world) failed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errs = append(w.errs, err)
}

// changed returns the arguments of Changed as text.
func (w *world) changed() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, u := range w.done {
		all = append(all, fmt.Sprintf("%s %.7s %.7s", u.Ref, u.Old, u.New))
	}
	return strings.Join(all, "\n")
}

var tester = node.Pusher{Name: "tester", Address: "192.0.2.1"}

// serve is as much of the smart HTTP protocol as a push needs.
func (w *world) serve(rw http.ResponseWriter, r *http.Request) {
	out := &recorder{w: rw, onWrite: w.onWrite}
	version := protocol.ParseVersion(r.Header.Get("Git-Protocol"))
	session := node.Session{Service: protocol.ReceivePack, Version: version, Stateless: true}
	var err error
	if strings.HasSuffix(r.URL.Path, "/info/refs") {
		if r.URL.Query().Get("service") != "git-receive-pack" {
			http.Error(rw, "only pushes", http.StatusForbidden)
			return
		}
		rw.Header().Set("Content-Type", "application/x-git-receive-pack-advertisement")
		out.before = pktline.AppendFlush(pktline.AppendLine(nil, "# service=git-receive-pack"))
		_, err = w.server.Advertise(r.Context(), w.open(), session, "", out)
	} else {
		rw.Header().Set("Content-Type", "application/x-git-receive-pack-result")
		out.body = r.Body
		var outcome node.Outcome
		pusher := tester
		pusher.Rules = w.rules
		outcome, err = w.server.Serve(r.Context(), w.target(), session, pusher, r.Body, out)
		w.mu.Lock()
		w.outcomes = append(w.outcomes, outcome)
		w.mu.Unlock()
	}
	if err != nil {
		w.failed(err)
		if _, told := errors.AsType[*node.ReportedError](err); out.written == 0 && !told {
			http.Error(rw, fault.Message(err), http.StatusServiceUnavailable)
		}
	}
}

// recorder is a Reply in memory, or on its way to a client.
type recorder struct {
	bytes.Buffer
	w       http.ResponseWriter // may be nil
	body    io.Reader           // read to its end before the first byte is written
	before  []byte
	written int
	onWrite func(p []byte)
}

func (r *recorder) SetLength(int64)      {}
func (r *recorder) StartBulk(bool) error { return nil }

func (*recorder) ReserveMemory(int64) error { return nil }
func (r *recorder) Flush() error            { return nil }

func (r *recorder) Write(p []byte) (int, error) {
	if r.written == 0 && r.body != nil {
		_, _ = io.Copy(io.Discard, r.body)
	}
	if r.onWrite != nil {
		r.onWrite(p)
	}
	r.written += len(p)
	if r.w == nil {
		return r.Buffer.Write(p)
	}
	if r.before != nil {
		_, _ = r.w.Write(r.before)
		r.before = nil
	}
	return r.w.Write(p)
}

// clone makes a repository with a first commit that can push to the world.
func (w *world) clone() *gittest.Repo {
	w.t.Helper()
	format := w.Git("rev-parse", "--show-object-format")
	c := gittest.InitAt(w.t, filepath.Join(w.t.TempDir(), "client.git"), "--object-format="+format)
	c.Git("update-ref", "refs/heads/main", c.Commit("first").String())
	return c
}

// push runs git push; it gives what git printed.
func (w *world) push(c *gittest.Repo, args ...string) (string, error) {
	w.t.Helper()
	cmd := exec.Command("git", append([]string{"push", w.url}, args...)...)
	cmd.Dir, cmd.Env = c.Dir, gittest.Env()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (w *world) mustPush(c *gittest.Repo, args ...string) string {
	w.t.Helper()
	out, err := w.push(c, args...)
	if err != nil {
		w.t.Fatalf("push %q: %v\n%s", args, err, out)
	}
	return out
}

// refs lists the repository's refs.
func (w *world) refs() string {
	w.t.Helper()
	return w.Git("for-each-ref", "--format=%(refname) %(objectname)")
}

// clean fails if a push left something behind.
func (w *world) clean() {
	w.t.Helper()
	eventually(w.t, "the journal is not empty", func() bool {
		left, err := os.ReadDir(w.server.options.Journal)
		return err == nil && len(left) == 0
	})
	err := filepath.WalkDir(w.Dir, func(path string, _ os.DirEntry, err error) error {
		name := filepath.Base(path)
		if strings.HasSuffix(name, ".lock") || strings.HasSuffix(name, ".keep") || strings.HasPrefix(name, "tmp_") ||
			strings.HasPrefix(name, "incoming-") {
			w.t.Errorf("a push left %s", path)
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.Git("fsck", "--strict")
}

// recovered returns the value of a counter of the recovery.
func recovered(w *world, kind string) int {
	return int(testutil.ToFloat64(w.server.metrics.recovered.WithLabelValues(kind)))
}

// eventually waits for a state that nothing announces.
func eventually(t testing.TB, otherwise string, is func() bool) {
	t.Helper()
	if !gittest.Eventually(is) {
		t.Fatal(otherwise)
	}
}
