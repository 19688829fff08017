package places

import (
	"context"
	"testing"

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
