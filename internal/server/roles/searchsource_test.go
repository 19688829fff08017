package roles

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/control"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/search"
	searchremote "github.com/packhorse-git/packhorse/internal/search/remote"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// sourceWorld is a node with repositories for tests of a search.Source.
type sourceWorld struct {
	t    *testing.T
	dir  string
	node *storage.Node
}

func newSourceWorld(t *testing.T) *sourceWorld {
	t.Helper()
	return newSourceWorldOf(t, 0)
}

// newSourceWorldOf makes one whose node watches so many repositories; 0: as many as nodes do.
func newSourceWorldOf(t *testing.T, watched int) *sourceWorld {
	t.Helper()
	runner, err := process.New(process.Options{TempDir: t.TempDir(),
		Classes: map[process.Class]process.Limits{storage.ClassGrep: config.GrepLimits()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = runner.Close(context.Background()) })
	w := &sourceWorld{t: t, dir: t.TempDir()}
	if w.node, err = storage.New(nil, storage.Options{Root: w.dir, Runner: runner, CheckInterval: 10 * time.Millisecond,
		MaxWatched: watched}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.node.Close() })
	return w
}

func (w *sourceWorld) do(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *sourceWorld) path(name string) git.RepoPath {
	path, err := git.ParseRepoPath(name)
	w.do(err)
	return path
}

// commit moves a branch to a new commit of a tree that has these lines of "mode type id<tab>path".
func (w *sourceWorld) commit(r *gittest.Repo, branch string, files map[string]string) git.ObjectID {
	var tree strings.Builder
	blobs := map[string]string{}
	for name, text := range files {
		if blobs[text] == "" {
			blobs[text] = r.GitIn(text, "hash-object", "-w", "--stdin")
		}
		fmt.Fprintf(&tree, "100644 blob %s\t%s\n", blobs[text], name)
	}
	args := []string{"commit-tree", "-m", "x", r.GitIn(tree.String(), "mktree")}
	if old, err := r.Try("rev-parse", "-q", "--verify", branch); err == nil {
		args = append(args, "-p", strings.TrimSpace(old))
	}
	id := r.ID(r.Git(args...))
	r.Git("update-ref", branch, id.String())
	return id
}

// sources are the forms of a search.Source over one node.
var sources = map[string]func(*sourceWorld) search.Source{
	"in process": func(w *sourceWorld) search.Source { return searchNode{w.node, admit.NewLane("cold", 10)} },
	"elsewhere": func(w *sourceWorld) search.Source {
		return searchremote.NewSource([]searchremote.Route{{Nodes: []searchremote.Node{{Client: w.client(w.listen())}}}})
	},
	"at the second node": func(w *sourceWorld) search.Source {
		return searchremote.NewSource([]searchremote.Route{{Nodes: []searchremote.Node{{Name: "away",
			Client: w.client("127.0.0.1:1")}, {Name: "here", Client: w.client(w.listen())}}}})
	},
	"by routes": func(w *sourceWorld) search.Source {
		away, here := searchremote.Node{Client: w.client("127.0.0.1:1")}, searchremote.Node{Client: w.client(w.listen())}
		return searchremote.NewSource([]searchremote.Route{{Prefix: "team/a", Nodes: []searchremote.Node{here, away}},
			{Prefix: "", Nodes: []searchremote.Node{here}}, {Prefix: "tea", Nodes: []searchremote.Node{here}}})
	},
}

// listen serves the node's control API, and returns the address.
func (w *sourceWorld) listen() string {
	handler := control.New(control.Options{
		Node: w.node, Pump: bulk.NewPump(bulk.PumpOptions{}),
		Lanes: admit.NewLanes(admit.Sizes{Small: 10, Hit: 10, Cold: 10}),
		Log:   slog.New(slog.DiscardHandler), Board: inflight.NewBoard(),
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	w.do(err)
	server := handler.HTTPServer()
	go func() { _ = server.Serve(listener) }()
	w.t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String()
}

func (w *sourceWorld) client(address string) *client.Client {
	c, err := client.New(address, client.Options{})
	w.do(err)
	w.t.Cleanup(c.Close)
	return c
}

// TestSearchSources runs the same over each form.
func TestSearchSources(t *testing.T) {
	t.Parallel()
	for name, make := range sources {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSourceWorld(t)
			a := gittest.InitAt(t, filepath.Join(w.dir, "team/a.git"))
			first := w.commit(a, "refs/heads/main", map[string]string{"keep": "keep\n", "change": "old\n", "go": "gone\n",
				"large": strings.Repeat("x", 5000)})
			second := w.commit(a, "refs/heads/main", map[string]string{"keep": "keep\n", "change": "new needle\n",
				"add": "a needle\nneedle b\n", "large": strings.Repeat("x", 5000)})
			a.Git("symbolic-ref", "HEAD", "refs/heads/main")
			a.Git("-c", "user.name=a", "-c", "user.email=a@example.com", "tag", "-a", "-m", "t", "t", second.String())
			gittest.InitAt(t, filepath.Join(w.dir, "empty.git"))
			w.testSource(make(w), a, first, second)
		})
	}
}

// TestSearchSourcesAreFull fills the watches of a node. Each source reports that.
func TestSearchSourcesAreFull(t *testing.T) {
	t.Parallel()
	for name, make := range sources {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSourceWorldOf(t, 1)
			err := make(w).Watch(t.Context(), []git.RepoPath{w.path("a"), w.path("b")},
				func(git.RepoPath, git.Version, bool) error { return nil })
			if !fault.Is(err, fault.Exhausted) || fault.RetryAfter(err) == 0 {
				t.Errorf("error of the watch = %v, want kind %v with Retry-After", err, fault.Exhausted)
			}
		})
	}
}

// TestSearchSourceFollowsRoutes changes routes during a watch. Repositories without a route are missing.
func TestSearchSourceFollowsRoutes(t *testing.T) {
	t.Parallel()
	one, two := newSourceWorld(t), newSourceWorld(t)
	gittest.InitAt(t, filepath.Join(one.dir, "one.git"))
	gittest.InitAt(t, filepath.Join(two.dir, "two.git"))
	a, b := searchremote.Node{Name: "a", Client: one.client(one.listen())}, searchremote.Node{Name: "b",
		Client: two.client(two.listen())}
	s := searchremote.NewSource([]searchremote.Route{{Prefix: "one", Nodes: []searchremote.Node{a}}})
	type event struct {
		path string
		gone bool
	}
	events, ended := make(chan event, 100), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		ended <- s.Watch(ctx, []git.RepoPath{one.path("one.git"), one.path("two.git")},
			func(p git.RepoPath, _ git.Version, gone bool) error {
				events <- event{p.String(), gone}
				return nil
			})
	}()
	await := func(want ...event) {
		t.Helper()
		for late := time.After(time.Minute); len(want) > 0; {
			select {
			case e := <-events:
				want = slices.DeleteFunc(want, func(w event) bool { return w == e })
			case <-late:
				t.Fatalf("no event tells of %v", want)
			}
		}
	}
	await(event{"one.git", false}, event{"two.git", true})
	s.Set([]searchremote.Route{{Prefix: "two", Nodes: []searchremote.Node{b}}})
	await(event{"one.git", true}, event{"two.git", false})
	var all []string
	one.do(s.Repositories(ctx, func(p git.RepoPath) error { all = append(all, p.String()); return nil }))
	if !slices.Equal(all, []string{"two.git"}) {
		t.Errorf("repositories = %q, want two.git", all)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error of the watch = %v, want %v", err, context.Canceled)
	}
}

func (w *sourceWorld) testSource(s search.Source, a *gittest.Repo, first, second git.ObjectID) {
	t, ctx, path := w.t, w.t.Context(), w.path("team/a.git")
	var all []string
	w.do(s.Repositories(ctx, func(p git.RepoPath) error { all = append(all, p.String()); return nil }))
	slices.Sort(all)
	if !slices.Equal(all, []string{"empty.git", "team/a.git"}) {
		t.Errorf("repositories = %q, want empty.git and team/a.git", all)
	}
	heads, version, err := s.Heads(ctx, path, []string{"HEAD", "refs/heads/none", "refs/tags/t"})
	w.do(err)
	if heads[0].Name != "refs/heads/main" || heads[0].Commit != second || heads[0].Err != nil ||
		!fault.Is(heads[1].Err, fault.NotFound) ||
		heads[1].Name != "refs/heads/none" || heads[2].Commit != second || version.Incarnation == "" {
		t.Errorf("heads = %+v at %+v, want main and HEAD at the second commit and none missing", heads, version)
	}
	heads, version, err = s.Heads(ctx, w.path("empty"), []string{"HEAD"})
	if err != nil || !fault.Is(heads[0].Err, fault.NotFound) || version.Incarnation == "" {
		t.Errorf("heads of an empty repository = %+v at %+v, %v, want a missing one", heads, version, err)
	}
	if _, _, err := s.Heads(ctx, w.path("none"), []string{"HEAD"}); !fault.Is(err, fault.NotFound) {
		t.Errorf("heads of a missing repository: error = %v, want kind %v", err, fault.NotFound)
	}

	files := func(commit, base git.ObjectID) (list []string) {
		w.do(s.Files(ctx, path, commit, base, 4000, func(f search.File) error {
			if content := f.Content; content != nil && bytes.Contains(content, []byte("x")) {
				t.Errorf("content of the large file %s is sent, want none", f.Path)
			}
			list = append(list, fmt.Sprintf("%s %o %d %v %q", f.Path, f.Mode, f.Size, f.Gone, f.Content))
			return nil
		}))
		return list
	}
	if got, want := files(second, git.ObjectID{}), []string{`add 100644 18 false "a needle\nneedle b\n"`,
		`change 100644 11 false "new needle\n"`,
		`keep 100644 5 false "keep\n"`, `large 100644 5000 false ""`}; !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	if got, want := files(second, first), []string{`add 100644 18 false "a needle\nneedle b\n"`,
		`change 100644 11 false "new needle\n"`,
		`go 0 0 true ""`}; !slices.Equal(got, want) {
		t.Errorf("what differs %q, want %q", got, want)
	}
	absent, err := git.ParseObjectID(strings.Repeat("1", 40))
	w.do(err)
	enough := errors.New("enough")
	nothing := func(search.File) error { return enough }
	if err := s.Files(ctx, path, absent, git.ObjectID{}, 1, nothing); !fault.Is(err, fault.NotFound) {
		t.Errorf("files of a missing commit: error = %v, want kind %v", err, fault.NotFound)
	}
	if err := s.Files(ctx, path, second, git.ObjectID{}, 1, nothing); !errors.Is(err, enough) {
		t.Errorf("files for who wants none: %v", err)
	}
	if n, err := s.Behind(ctx, path, first, second, 10); n != 1 || err != nil {
		t.Errorf("Behind = %d, %v, want 1", n, err)
	}
	if _, err := s.Behind(ctx, path, absent, second, 10); !fault.Is(err, fault.NotFound) {
		t.Errorf("Behind of a missing commit: error = %v, want kind %v", err, fault.NotFound)
	}

	var hits []string
	grep := func(g search.Grep) error {
		hits = nil
		return s.Grep(ctx, path, second, g, func(h search.Hit) error {
			hits = append(hits, fmt.Sprintf("%s:%d:%d:%s", h.Path, h.Line, h.Column, h.Text))
			return nil
		})
	}
	w.do(grep(search.Grep{Pattern: "NEEDLE", IgnoreCase: true, Limit: 10}))
	if want := []string{"add:1:2:a needle", "add:2:0:needle b", "change:1:4:new needle"}; !slices.Equal(hits, want) {
		t.Errorf("hits %q, want %q", hits, want)
	}
	w.do(grep(search.Grep{Pattern: "^need(le|el) b$", Regexp: true, Limit: 10}))
	if want := []string{"add:2:0:needle b"}; !slices.Equal(hits, want) {
		t.Errorf("hits %q, want %q", hits, want)
	}
	w.do(grep(search.Grep{Pattern: "needle", Limit: 2}))
	if len(hits) != 2 {
		t.Errorf("hits = %q, want 2", hits)
	}
	if err := grep(search.Grep{Pattern: "(", Regexp: true, Limit: 2}); !fault.Is(err, fault.Invalid) {
		t.Errorf("invalid pattern: error = %v, want kind %v", err, fault.Invalid)
	}
	board := inflight.NewBoard()
	for pattern, want := range map[string]search.Grep{"found": {Pattern: "needle", Limit: 10},
		"not found": {Pattern: "haystack", Limit: 10}, "refused": {Pattern: "(", Regexp: true, Limit: 2}} {
		mine, request := board.Begin(ctx, "search", "")
		_ = s.Grep(mine, path, second, want, func(search.Hit) error { return nil })
		request.End()
		if u := request.Usage(); u.Commands != 1 || u.User+u.System == 0 {
			t.Errorf("%s: usage of git = %+v, want one command with CPU time", pattern, u)
		}
	}
	w.testPieces(s, a)
	w.testWatch(s, a)
}

// testPieces reads what does not fit into one message.
func (w *sourceWorld) testPieces(s search.Source, a *gittest.Repo) {
	want := map[string]string{"a": strings.Repeat("a", 3<<20), "b": "", "c": strings.Repeat("c", 1<<20), "d": "d"}
	for i := range 3000 {
		want[fmt.Sprint("n", i)] = "needle\n"
	}
	commit := w.commit(a, "refs/heads/large", want)
	n := 0
	w.do(s.Files(w.t.Context(), w.path("team/a"), commit, git.ObjectID{}, 4<<20, func(f search.File) error {
		if n++; f.Content == nil || string(f.Content) != want[string(f.Path)] {
			w.t.Errorf("%s has %d bytes, want %d", f.Path, len(f.Content), len(want[string(f.Path)]))
		}
		return nil
	}))
	lines := 0
	w.do(s.Grep(w.t.Context(), w.path("team/a"), commit, search.Grep{Pattern: "needle", Limit: 10_000},
		func(search.Hit) error { lines++; return nil }))
	if n != len(want) || lines != 3000 {
		w.t.Errorf("files = %d, lines = %d, want %d and 3000", n, lines, len(want))
	}
}

func (w *sourceWorld) testWatch(s search.Source, a *gittest.Repo) {
	type event struct {
		path    git.RepoPath
		version git.Version
		gone    bool
	}
	events, ended := make(chan event), make(chan error, 1)
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	paths := []git.RepoPath{w.path("team/a.git"), w.path("later.git")}
	go func() {
		ended <- s.Watch(ctx, paths, func(path git.RepoPath, version git.Version, gone bool) error {
			select {
			case events <- event{path, version, gone}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	next := func() event {
		w.t.Helper()
		select {
		case e := <-events:
			return e
		case err := <-ended:
			w.t.Fatalf("the watch ended: %v, want an event", err)
		case <-time.After(time.Minute):
			w.t.Fatal("no event after a minute, want one")
		}
		return event{}
	}
	state := map[git.RepoPath]event{}
	for range paths {
		e := next()
		state[e.path] = e
	}
	before := state[paths[0]]
	if before.gone || before.version.Incarnation == "" || !state[paths[1]].gone {
		w.t.Errorf("first state = %+v, want the first repository with a version and the second one missing", state)
	}
	w.commit(a, "refs/heads/main", map[string]string{"x": "x"})
	for e := next(); e.path != paths[0] || e.version.Generation <= before.version.Generation; e = next() {
	}
	gittest.InitAt(w.t, filepath.Join(w.dir, "later.git"))
	for e := next(); e.path != paths[1] || e.gone; e = next() {
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) && !fault.Is(err, fault.Cancelled) {
		w.t.Errorf("error of the watch = %v, want that it was canceled", err)
	}
}
