package places

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// A commit that a ref reaches only while the commit-graph is written is removed, and is not in the commit-graph: Git
// would accept pushes that need it.
func TestGraphOfCollection(t *testing.T) {
	t.Parallel()
	r := newTestRoot(t, t.TempDir())
	app := r.repo("app.git", "x")
	gone := app.Commit("gone", app.ID("main"))
	during := func(ctx context.Context, repository *repo.Repo, c GitCommand) error {
		if c.Args[0] != "commit-graph" {
			return realGit(ctx, repository, c)
		}
		app.Git("update-ref", "refs/heads/short", gone.String())
		defer app.Git("update-ref", "-d", "refs/heads/short")
		return realGit(ctx, repository, c)
	}
	p, err := r.acquire(r.path("app"))
	r.do(err)
	_, err = p.Open(t.Context(), r.Repo)
	r.do(err)
	_, err = p.Collect(t.Context(), during, CollectOptions{OlderThan: -1e9}) // objects of this second, too
	r.do(err)
	r.do(p.repo.Close())
	if _, err := app.Try("cat-file", "-e", gone.String()); err == nil {
		t.Fatal("the commit was not removed")
	}
	text := "tree " + app.ID("main^{tree}").String() + "\nparent " + gone.String() +
		"\nauthor A <a@localhost> 1 +0000\ncommitter A <a@localhost> 1 +0000\n\nx\n"
	child := app.GitIn(text, "hash-object", "-t", "commit", "-w", "--stdin")
	if out, err := app.Try("rev-list", "--objects", child, "--not", "--all"); err == nil {
		t.Errorf("Git finds %q, although a commit is missing", out)
	}
	app.Git("fsck", "--connectivity-only")
}

// A collection succeeds although refs change each time before Git reads them. It is refused while HEAD does so, and if
// the object of a ref is missing.
func TestCollectWhileRefsChange(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		kind fault.Kind
		text string
	}{
		"other":   {},
		"main":    {fault.Unavailable, "try again"},
		"missing": {fault.Internal, "bad object refs/heads/missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newTestRoot(t, t.TempDir())
			app := r.repo("app.git", "x")
			app.Git("symbolic-ref", "HEAD", "refs/heads/main")
			gone := app.Commit("gone").String()
			if name == "missing" {
				id := app.Commit(name).String()
				app.Git("update-ref", "refs/heads/"+name, id)
				r.do(os.Remove(filepath.Join(app.Dir, "objects", id[:2], id[2:])))
			}
			changes := 0
			changing := func(ctx context.Context, repository *repo.Repo, c GitCommand) error {
				if c.Args[0] == "repack" && name != "missing" {
					changes++
					app.Git("update-ref", "refs/heads/"+name, app.Commit(fmt.Sprint(changes), app.ID("main")).String())
				}
				return realGit(ctx, repository, c)
			}
			p, err := r.acquire(r.path("app"))
			r.do(err)
			_, err = p.Open(t.Context(), r.Repo)
			r.do(err)
			defer p.repo.Close()
			_, err = p.Collect(t.Context(), changing, CollectOptions{OlderThan: -1e9}) // objects of this second, too
			if want.text == "" && err != nil ||
				want.text != "" && (!fault.Is(err, want.kind) || !strings.Contains(err.Error(), want.text)) {
				t.Errorf("after %d changes the collection returns %v, want %v, %q", changes, err, want.kind, want.text)
			}
			if _, lookErr := app.Try("cat-file", "-e", gone); (lookErr == nil) != (err != nil) {
				t.Errorf("after a collection with the error %v, git cat-file of the expired commit returns %v", err, lookErr)
			}
			if name != "missing" {
				app.Git("fsck", "--connectivity-only")
			}
		})
	}
}
