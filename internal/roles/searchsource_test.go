package roles

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/admit"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/gittest"
	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/storage"
)

// sourceWorld is a node with repositories, for what reads them as a search.Source.
type sourceWorld struct {
	t    *testing.T
	dir  string
	node *storage.Node
}

func newSourceWorld(t *testing.T) *sourceWorld {
	t.Helper()
	runner, err := process.New(process.Options{TempDir: t.TempDir(), Classes: map[process.Class]process.Limits{storage.ClassGrep: grepLimits(0)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = runner.Close(context.Background()) })
	w := &sourceWorld{t: t, dir: t.TempDir()}
	if w.node, err = storage.New(nil, storage.Options{Root: w.dir, Runner: runner, Look: 10 * time.Millisecond}); err != nil {
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
	for name, text := range files {
		fmt.Fprintf(&tree, "100644 blob %s\t%s\n", r.GitIn(text, "hash-object", "-w", "--stdin"), name)
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
}

// TestSearchSources runs the same over each form.
func TestSearchSources(t *testing.T) {
	t.Parallel()
	for name, make := range sources {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSourceWorld(t)
			a := gittest.InitAt(t, filepath.Join(w.dir, "team/a.git"))
			first := w.commit(a, "refs/heads/main", map[string]string{"keep": "keep\n", "change": "old\n", "go": "gone\n", "large": strings.Repeat("x", 5000)})
			second := w.commit(a, "refs/heads/main", map[string]string{"keep": "keep\n", "change": "new needle\n", "add": "a needle\nneedle b\n", "large": strings.Repeat("x", 5000)})
			a.Git("symbolic-ref", "HEAD", "refs/heads/main")
			a.Git("-c", "user.name=a", "-c", "user.email=a@example.com", "tag", "-a", "-m", "t", "t", second.String())
			gittest.InitAt(t, filepath.Join(w.dir, "empty.git"))
			w.testSource(make(w), a, first, second)
		})
	}
}

func (w *sourceWorld) testSource(s search.Source, a *gittest.Repo, first, second git.ObjectID) {
	t, ctx, path := w.t, w.t.Context(), w.path("team/a.git")
	var all []string
	w.do(s.Repositories(ctx, func(p git.RepoPath) error { all = append(all, p.String()); return nil }))
	if !slices.Equal(all, []string{"empty.git", "team/a.git"}) {
		t.Errorf("repositories %q", all)
	}
	heads, version, err := s.Heads(ctx, path, []string{"HEAD", "refs/heads/none", "refs/tags/t"})
	w.do(err)
	if heads[0].Name != "refs/heads/main" || heads[0].Commit != second || heads[0].Err != nil || !fault.Is(heads[1].Err, fault.NotFound) ||
		heads[1].Name != "refs/heads/none" || heads[2].Commit != second || version.Incarnation == "" {
		t.Errorf("heads %+v at %+v", heads, version)
	}
	heads, version, err = s.Heads(ctx, w.path("empty"), []string{"HEAD"})
	if err != nil || !fault.Is(heads[0].Err, fault.NotFound) || version.Incarnation == "" {
		t.Errorf("heads of nothing %+v at %+v, %v", heads, version, err)
	}
	if _, _, err := s.Heads(ctx, w.path("none"), []string{"HEAD"}); !fault.Is(err, fault.NotFound) {
		t.Errorf("heads of no repository: %v", err)
	}

	files := func(commit, base git.ObjectID) (list []string) {
		w.do(s.Files(ctx, path, commit, base, 4000, func(f search.File) error {
			if content := f.Content; content != nil && bytes.Contains(content, []byte("x")) {
				t.Errorf("%s is too large", f.Path)
			}
			list = append(list, fmt.Sprintf("%s %o %d %v %q", f.Path, f.Mode, f.Size, f.Gone, f.Content))
			return nil
		}))
		return list
	}
	if got, want := files(second, git.ObjectID{}), []string{`add 100644 18 false "a needle\nneedle b\n"`, `change 100644 11 false "new needle\n"`,
		`keep 100644 5 false "keep\n"`, `large 100644 5000 false ""`}; !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	if got, want := files(second, first), []string{`add 100644 18 false "a needle\nneedle b\n"`, `change 100644 11 false "new needle\n"`,
		`go 0 0 true ""`}; !slices.Equal(got, want) {
		t.Errorf("what differs %q, want %q", got, want)
	}
	absent, err := git.ParseObjectID(strings.Repeat("1", 40))
	w.do(err)
	enough := errors.New("enough")
	nothing := func(search.File) error { return enough }
	if err := s.Files(ctx, path, absent, git.ObjectID{}, 1, nothing); !fault.Is(err, fault.NotFound) {
		t.Errorf("files of nothing: %v", err)
	}
	if err := s.Files(ctx, path, second, git.ObjectID{}, 1, nothing); !errors.Is(err, enough) {
		t.Errorf("files for who wants none: %v", err)
	}
	if n, err := s.Behind(ctx, path, first, second, 10); n != 1 || err != nil {
		t.Errorf("%d behind, %v", n, err)
	}
	if _, err := s.Behind(ctx, path, absent, second, 10); !fault.Is(err, fault.NotFound) {
		t.Errorf("behind nothing: %v", err)
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
		t.Errorf("2 lines are %q", hits)
	}
	if err := grep(search.Grep{Pattern: "(", Regexp: true, Limit: 2}); !fault.Is(err, fault.Invalid) {
		t.Errorf("no pattern: %v", err)
	}
	w.testWatch(s, a)
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
			w.t.Fatalf("the watch ended: %v", err)
		case <-time.After(time.Minute):
			w.t.Fatal("no event comes")
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
		w.t.Errorf("it begins with %+v", state)
	}
	w.commit(a, "refs/heads/main", map[string]string{"x": "x"})
	for e := next(); e.path != paths[0] || e.version.Generation <= before.version.Generation; e = next() {
	}
	gittest.InitAt(w.t, filepath.Join(w.dir, "later.git"))
	for e := next(); e.path != paths[1] || e.gone; e = next() {
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) && !fault.Is(err, fault.Cancelled) {
		w.t.Errorf("the watch ended with %v", err)
	}
}
