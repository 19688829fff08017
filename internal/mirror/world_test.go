package mirror

import (
	"context"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/ingest"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
)

// host is a Git host: git http-backend on the repositories in a directory.
type host struct {
	*httptest.Server
	dir     string
	backend *cgi.Handler
	fetches atomic.Int32 // requests to git upload-pack: for refs and for packs

	mu     sync.Mutex
	handle func(w http.ResponseWriter, r *http.Request) (done bool) // nil: nothing is special
}

func newHost(t *testing.T) *host {
	t.Helper()
	path, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{dir: t.TempDir()}
	h.backend = &cgi.Handler{Path: path, Args: []string{"http-backend"}, Env: append([]string{"GIT_HTTP_EXPORT_ALL=1",
		"GIT_PROJECT_ROOT=" + h.dir}, gittest.Env()...)}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		handle := h.handle
		h.mu.Unlock()
		if handle != nil && handle(w, r) {
			return
		}
		if strings.HasSuffix(r.URL.Path, "/git-upload-pack") {
			h.fetches.Add(1)
		}
		h.backend.ServeHTTP(w, r)
	}))
	t.Cleanup(h.Close)
	return h
}

// backendAs answers a request of a user.
func (h *host) backendAs(w http.ResponseWriter, r *http.Request, user string) {
	backend := *h.backend
	backend.Env = append([]string{"REMOTE_USER=" + user}, backend.Env...)
	backend.ServeHTTP(w, r)
}

// set makes requests go through a function first.
func (h *host) set(handle func(http.ResponseWriter, *http.Request) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.handle = handle
}

// repo makes a repository of the host with a commit on main.
func (h *host) repo(t *testing.T, path string, args ...string) *gittest.Repo {
	t.Helper()
	r := gittest.InitAt(t, filepath.Join(h.dir, path), args...)
	r.Git("config", "uploadpack.allowAnySHA1InWant", "true")
	r.Git("update-ref", "refs/heads/main", r.Commit("first").String())
	return r
}

// world is a storage node with the mirrors of a host.
type world struct {
	*Mirrors
	t    *testing.T
	host *host
	root string
	rule Rule
	skew atomic.Int64 // added to the time
}

func newWorld(t *testing.T, h *host, root string, edit ...func(*Rule)) *world {
	t.Helper()
	w := &world{t: t, host: h, root: root}
	base, err := url.Parse(h.URL + "/")
	w.do(err)
	client, err := origin.New(origin.Options{URL: base, Requests: 100, AnswerTimeout: 10 * time.Second})
	w.do(err)
	w.rule = Rule{Prefix: "host", URL: base, Origin: client, StaleFor: time.Hour, FirstUse: true}
	for _, change := range edit {
		change(&w.rule)
	}
	limits := process.Limits{Slots: 4, Queue: 1000}
	runner, err := process.New(process.Options{TempDir: t.TempDir(), Classes: map[process.Class]process.Limits{
		ingest.Class: limits, places.ClassManage: limits, places.ClassMaintain: limits,
		packsource.ClassPack: limits}})
	w.do(err)
	source, err := packsource.NewGit(runner, packsource.GitOptions{Scratch: t.TempDir()})
	w.do(err)
	n, err := storage.New(uploadpack.New(source, uploadpack.Options{Agent: "test", Wants: uploadpack.WantsAuto}),
		storage.Options{Root: root, Runner: runner, LFS: &objects.Options{MinFree: -1}})
	w.do(err)
	w.Mirrors, err = New(Options{Node: n, Rules: []Rule{w.rule}, State: t.TempDir(),
		Now: func() time.Time { return time.Now().Add(time.Duration(w.skew.Load())) }})
	w.do(err)
	t.Cleanup(func() {
		_ = w.Close()
		_ = client.Close()
		_ = n.Close()
		_ = runner.Close(context.Background())
	})
	return w
}

func (w *world) do(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// probe asks the origin whether anonymous callers may fetch.
func (w *world) probe(s string) error {
	path := w.path(s)
	rule, at, _ := w.find(path)
	return w.Mirrors.probe(w.t.Context(), path, rule, at, protocol.UploadPack, node.Secret{})
}

func (w *world) path(s string) git.RepoPath {
	w.t.Helper()
	path, err := git.ParseRepoPath(s)
	w.do(err)
	return path
}

// use opens a mirror and checks it until it is up to date.
func (w *world) use(path string) *mirror {
	w.t.Helper()
	r, err := w.open(w.t.Context(), w.path(path), node.Secret{})
	w.do(err)
	if r == nil {
		w.t.Fatalf("%s is not a mirror", path)
	}
	result, err := r.check(w.t.Context(), node.Secret{}, true)
	w.do(err)
	if result.Err != nil {
		w.t.Fatalf("check of %s: %v, want an up-to-date mirror", path, result.Err)
	}
	return r
}

// same compares a mirror with its origin.
func (w *world) same(path string, from *gittest.Repo) {
	w.t.Helper()
	made := gittest.At(w.t, filepath.Join(w.root, path+".git"))
	for _, args := range [][]string{
		{"for-each-ref", "--format=%(objectname) %(*objectname) %(refname)"}, {"symbolic-ref", "HEAD"}} {
		if got, want := made.Git(args...), from.Git(args...); got != want {
			w.t.Fatalf("git %s in the mirror %s:\n%s\nwant\n%s", args[0], path, got, want)
		}
	}
	made.Git("fsck", "--full", "--strict", "--no-dangling", "--connectivity-only")
	if left, _ := filepath.Glob(made.Dir + "/objects/tmp_objdir*"); len(left) > 0 {
		w.t.Fatalf("left in the mirror %s: %q", path, left)
	}
}

// later moves the time.
func (w *world) later(d time.Duration) { w.skew.Add(int64(d)) }
