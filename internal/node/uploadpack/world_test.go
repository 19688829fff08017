package uploadpack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/packcache"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/packsource/native"
)

var version2 = node.Session{Version: protocol.V2, Stateless: true}

// sources lists the sources of packs.
var sources = []struct {
	name string
	make func(t testing.TB) packsource.Source
}{
	{"git", newSource},
	{"native", func(t testing.TB) packsource.Source {
		git := newGit(t)
		return onlyNative{native.New(native.Options{Git: git, Threads: 2, Always: true}), git}
	}},
}

// onlyNative makes all packs in process, except for those with a sparse filter, which package native leaves to git.
type onlyNative struct {
	*native.Source
	git packsource.Source
}

func (s onlyNative) Open(ctx context.Context, spec *packsource.Spec) (packsource.Pack, error) {
	if strings.Contains(spec.Filter, "sparse:") {
		return s.git.Open(ctx, spec)
	}
	return s.Source.Open(ctx, spec)
}

// newSource runs the real git.
func newSource(t testing.TB) packsource.Source { return newGit(t) }

func newGit(t testing.TB) *packsource.Git {
	t.Helper()
	runner, err := process.New(process.Options{
		Classes: map[process.Class]process.Limits{packsource.ClassPack: {Slots: 4, Queue: 100}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { runner.Close(context.Background()) })
	source, err := packsource.NewGit(runner, packsource.GitOptions{
		Scratch: filepath.Join(t.TempDir(), "scratch"), Threads: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// cached puts a pack cache before a source, from which a native one composes packs.
func cached(t testing.TB, source packsource.Source) packsource.Source {
	t.Helper()
	cache, err := packcache.Open(source, packcache.Options{Dir: t.TempDir(), MaxBytes: 1 << 30, MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cache.Close() })
	if n, ok := source.(onlyNative); ok {
		n.SetLibrary(cache)
	}
	return cache
}

// oracleConfig lets the real upload-pack answer all that we answer.
const oracleConfig = `
[uploadpack]
	allowFilter = true
	allowRefInWant = true
	allowAnySHA1InWant = true
	allowSidebandAll = true
[lsrefs]
	unborn = advertise
`

func openRepo(t testing.TB, dir string) *repo.Repo {
	t.Helper()
	r, err := openWith(t, dir, repo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// openWith opens a repository, or a copy of it in a store.
func openWith(t testing.TB, dir string, o repo.Options) (*repo.Repo, error) {
	t.Helper()
	if isInStore(t) {
		stored := theStore.Import(t, dir)
		dir, o.Place = stored.Dir(), stored
	}
	return repo.Open(dir, o)
}

// testServer is a repository and what can be asked for in it.
type testServer struct {
	*gittest.Repo
	repo    *repo.Repo
	format  git.ObjectFormat
	layout  string
	shallow bool // its own history is cut off

	boundary []string // where

	tips, commits, tags, others []string // object IDs
	refs                        []string // full names
	sparse                      []string // what names a pattern blob
	dates                       []int64
}

// layouts are the ways in which objects may be stored.
var layouts = []string{"packed", "loose", "graph", "bitmaps", "packs", "split-graph", "shallow"}

func newTestServer(t testing.TB, seed uint64, layout string) *testServer {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 1))
	format := "sha1"
	if seed%4 == 3 {
		format = "sha256"
	}
	s := &testServer{Repo: gittest.Random(t, seed, gittest.Shape{
		Merge: 0.3, Skew: chance(rnd, 50), Format: format, Commits: 20 + rnd.IntN(40), Branches: 2 + rnd.IntN(5),
	})}
	if layout == "shallow" && !isInStore(t) { // the server's own history is cut off
		dir := filepath.Join(t.TempDir(), "shallow.git")
		depth := fmt.Sprintf("--depth=%d", 2+rnd.IntN(4))
		s.Git("clone", "-q", "--mirror", "--no-single-branch", depth, "file://"+s.Dir, dir)
		s.Repo, s.shallow = gittest.At(t, dir), true
	}
	s.layout = layout
	s.decorate(t, rnd)
	s.store(t, rnd, layout)
	config, err := os.OpenFile(filepath.Join(s.Dir, "config"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = config.WriteString(oracleConfig)
		config.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	s.list(t)
	s.repo = openRepo(t, s.Dir)
	s.format = s.repo.Format
	boundary, err := s.repo.Shallow()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range boundary {
		s.boundary = append(s.boundary, id.String())
	}
	return s
}

// decorate adds refs of all kinds.
func (s *testServer) decorate(t testing.TB, rnd *rand.Rand) {
	s.Git("tag", "-a", "-m", "deeper", "nested2", "nested")
	s.Git("update-ref", "refs/other/tag", "nested2")
	inStore := isInStore(t) // of symbolic refs, a store has HEAD alone
	if !inStore {
		s.Git("symbolic-ref", "refs/symbolic/one", "refs/heads/main")
		s.Git("symbolic-ref", "refs/symbolic/two", "refs/symbolic/one")
		s.Git("symbolic-ref", "refs/dangling", "refs/heads/nothing")
	}
	patterns := s.GitIn("/dir/\n!/dir/sub/\n*.txt\n", "hash-object", "-w", "--stdin")
	s.Git("tag", "patterns", patterns)
	switch n := rnd.IntN(5); {
	case n == 1:
		s.Git("symbolic-ref", "HEAD", "refs/heads/nothing")
	case inStore:
	case n == 0:
		s.Git("update-ref", "--no-deref", "HEAD", s.Git("rev-parse", "nested^{commit}"))
	case n == 2:
		s.Git("symbolic-ref", "HEAD", "refs/symbolic/two")
	}
	s.sparse = []string{
		patterns, "patterns", "refs/tags/patterns", "main:README", "main:a.txt", "main:dir/x", "nested:README",
		"HEAD:a.txt", "light-blob",
		"main", "main:dir", "none:README", "v1:no/such/file", "patterns:x",
	}
}

// store lays the objects out.
func (s *testServer) store(t testing.TB, rnd *rand.Rand, layout string) {
	t.Helper()
	unpack := func() {
		packs, _ := filepath.Glob(filepath.Join(s.Dir, "objects/pack/*.pack"))
		for _, path := range packs {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			os.Remove(path)
			os.Remove(strings.TrimSuffix(path, "pack") + "idx")
			s.GitIn(string(data), "unpack-objects", "-q")
		}
	}
	switch layout {
	case "loose":
		unpack()
	case "graph":
		s.Git("repack", "-adq")
		s.Git("commit-graph", "write", "--reachable")
	case "bitmaps":
		s.Git("repack", "-adbq")
	case "packs":
		unpack()
		for _, rev := range []string{"main~2", "main"} {
			if list, err := s.Try("rev-list", "--objects", rev); err == nil {
				s.GitIn(list+"\n", "pack-objects", "-q", "objects/pack/pack")
				s.Git("prune-packed", "-q")
			}
		}
		s.Git("multi-pack-index", "write")
	case "split-graph":
		s.GitIn(s.Git("rev-parse", "main~1")+"\n", "commit-graph", "write", "--split", "--stdin-commits")
		s.Git("commit-graph", "write", "--split=no-merge", "--reachable")
	}
	if chance(rnd, 50) {
		s.Git("pack-refs", "--all")
	}
}

// list looks what there is to ask for.
func (s *testServer) list(t testing.TB) {
	t.Helper()
	for line := range strings.Lines(s.Git("for-each-ref", "--format=%(refname) %(objectname)") + "\n") {
		name, id, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		s.refs = append(s.refs, name)
		if strings.HasPrefix(name, "refs/heads/") {
			s.tips = append(s.tips, id)
		}
	}
	s.refs = append(s.refs, "HEAD", "refs/heads/none", "refs/dangling")
	for line := range strings.Lines(s.Git("cat-file", "--batch-all-objects",
		"--batch-check=%(objecttype) %(objectname)") + "\n") {
		typ, id, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch typ {
		case "commit":
			s.commits = append(s.commits, id)
		case "tag":
			s.tags = append(s.tags, id)
		default:
			s.others = append(s.others, id)
		}
	}
	for date := range strings.FieldsSeq(s.Git("log", "--all", "--format=%ct")) {
		n, err := strconv.ParseInt(date, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		s.dates = append(s.dates, n)
	}
}

// oracle asks the real upload-pack in version 2.
func (s *testServer) oracle(t testing.TB, request []byte) (out []byte, failed bool, stderr string) {
	t.Helper()
	return s.oracleAs(t, version2, request)
}

// oracleAs asks the real upload-pack; failed means that it did not answer the request. It omits the advertisement of
// a session with state.
func (s *testServer) oracleAs(t testing.TB, session node.Session, request []byte) (out []byte, failed bool,
	stderr string) {
	t.Helper()
	args := []string{"upload-pack", s.Dir}
	if session.Stateless {
		args = []string{"upload-pack", "--stateless-rpc", s.Dir}
	}
	if session.Version != protocol.V2 {
		// In the older versions the client's boundary is part of the question whether it is "ready". Git forgets that
		// of commits that it finds in a commit-graph (seen in 2.39), so that its answer depends on whether there is
		// one; ours does not.
		args = append([]string{"-c", "core.commitGraph=false"}, args...)
	}
	cmd := exec.Command("git", args...)
	cmd.Env = append(gittest.Env(), "GIT_PROTOCOL=version="+session.Version.String()[1:])
	cmd.Stdin = bytes.NewReader(request)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	out = o.Bytes()
	if !session.Stateless {
		_, out, _ = bytes.Cut(out, []byte("\n0000"))
	}
	told := strings.HasPrefix(string(out[min(4, len(out)):]), "ERR ")
	return out, err != nil || told, e.String()
}

// serve asks us in version 2.
func (s *testServer) serve(server *Server, request []byte) (*recorder, node.Outcome, error) {
	return s.serveAs(server, version2, request)
}

// serveAs asks us.
func (s *testServer) serveAs(server *Server, session node.Session, request []byte) (*recorder, node.Outcome, error) {
	response := newRecorder()
	outcome, err := server.Serve(context.Background(), s.repo, session,
		pktline.NewReader(bytes.NewReader(request)), response)
	if err == nil && response.length >= 0 && response.length != int64(response.Len()) {
		err = fmt.Errorf("%d bytes were announced and %d written", response.length, response.Len())
	}
	return response, outcome, err
}

// testClient is a repository that fetches.
type testClient struct {
	*gittest.Repo
	name    string
	tips    []string // commits that its refs point at
	commits []string // all that it can name as haves: what its refs reach in its own, maybe shallow history
	shallow []string
	objects map[string]bool
}

// newTestClients makes clients in every state.
func newTestClients(t testing.TB, s *testServer, rnd *rand.Rand, stranger string) []*testClient {
	t.Helper()
	var clients []*testClient
	for i, name := range []string{"none", "stale", "diverged", "shallow", "shallower", "since", "stranger"} {
		dir := filepath.Join(t.TempDir(), fmt.Sprintf("%d.git", i))
		c := &testClient{Repo: gittest.InitAt(t, dir, "--object-format="+s.format.String()), name: name}
		fetch := func(args ...string) {
			spec := fmt.Sprintf("%s:refs/heads/b%d", pick(rnd, s.commits), rnd.IntN(4))
			args = append([]string{"fetch", "-q", "--no-tags", "--force"}, args...)
			c.Try(append(args, "file://"+s.Dir, spec)...) // shallow-since may find nothing
		}
		switch name {
		case "stale":
			fetch()
			fetch()
		case "diverged":
			fetch()
			c.diverge(rnd)
		case "shallow":
			fetch(fmt.Sprintf("--depth=%d", 1+rnd.IntN(5)))
		case "shallower":
			for range 3 {
				fetch(fmt.Sprintf("--depth=%d", 1+rnd.IntN(5)))
			}
			if chance(rnd, 50) {
				c.diverge(rnd)
			}
		case "since":
			fetch(fmt.Sprintf("--shallow-since=%d", pick(rnd, s.dates)))
			fetch()
		case "stranger":
			fetch("--depth=2")
			if s.format == git.SHA1 {
				c.Git("fetch", "-q", "--depth=2", "file://"+stranger, "main:refs/heads/stranger")
			}
		}
		c.look(t)
		clients = append(clients, c)
	}
	return clients
}

// diverge makes commits that only the client has.
func (c *testClient) diverge(rnd *rand.Rand) {
	out, _ := c.Try("for-each-ref", "--format=%(objectname)")
	tips := strings.Fields(out)
	if len(tips) == 0 {
		return
	}
	id := git.MustParseObjectID(pick(rnd, tips))
	for i := range 1 + rnd.IntN(3) {
		id = c.Commit(fmt.Sprintf("local %d of %s", i, c.Dir), id)
	}
	c.Git("update-ref", "refs/heads/local", id.String())
}

func (c *testClient) look(t testing.TB) {
	t.Helper()
	c.tips = strings.Fields(c.Git("for-each-ref", "--format=%(objectname)"))
	slices.Sort(c.tips)
	c.tips = slices.Compact(c.tips)
	if len(c.tips) > 0 {
		c.commits = strings.Fields(c.Git("rev-list", "--all"))
	}
	c.objects = make(map[string]bool)
	for id := range strings.FieldsSeq(c.Git("cat-file", "--batch-all-objects", "--batch-check=%(objectname)")) {
		c.objects[id] = true
	}
	shallow, err := os.ReadFile(filepath.Join(c.Dir, "shallow"))
	if err == nil {
		c.shallow = slices.DeleteFunc(strings.Fields(string(shallow)), func(id string) bool {
			return !c.objects[id] // left by a fetch that failed
		})
	}
}

// accept is what a client does with an answer: it updates its boundary, completes the pack and checks that all it wants
// is there. It works on a copy.
func (c *testClient) accept(t testing.TB, a *answer, wants []string, complete bool) error {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "copy.git")
	if err := os.CopyFS(dir, os.DirFS(c.Dir)); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	shallow := slices.Clone(c.shallow)
	for _, line := range a.lines["shallow-info"] {
		word, id, _ := strings.Cut(line, " ")
		if word == "shallow" {
			shallow = append(shallow, id)
		} else {
			shallow = slices.DeleteFunc(shallow, func(s string) bool { return s == id })
		}
	}
	file := filepath.Join(dir, "shallow")
	os.Remove(file)
	if len(shallow) > 0 {
		if err := os.WriteFile(file, []byte(strings.Join(shallow, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	copied := gittest.At(t, dir)
	cmd := exec.Command("git", "index-pack", "--stdin", "--fix-thin")
	cmd.Dir, cmd.Env, cmd.Stdin = dir, gittest.Env(), bytes.NewReader(a.pack)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("index-pack: %w\n%s", err, out)
	}
	if !complete {
		return nil
	}
	_, err := copied.Try(append([]string{"rev-list", "--objects", "--quiet", "--all"}, wants...)...)
	return err
}
