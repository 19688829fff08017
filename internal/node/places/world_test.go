package places

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// testRoot has Directories that do not run Git.
type testRoot struct {
	*Directories
	t   *testing.T
	dir string
}

func newTestRoot(t *testing.T, dir string) *testRoot {
	t.Helper()
	options, err := repo.OptionsBelow(dir)
	if err != nil {
		t.Fatal(err)
	}
	d := NewDirectories(Options{Repo: options, Log: slog.New(slog.DiscardHandler), Claims: new(Claims),
		Deleted: func(string) {}})
	t.Cleanup(d.Close)
	return &testRoot{d, t, dir}
}

// repo creates a repository below the root whose main branch is one commit with the given text.
func (r *testRoot) repo(path, text string) *gittest.Repo {
	r.t.Helper()
	repo := gittest.InitAt(r.t, filepath.Join(r.dir, path))
	repo.Git("update-ref", "refs/heads/main", repo.Commit(text).String())
	return repo
}

func (r *testRoot) path(name string) git.RepoPath {
	r.t.Helper()
	path, err := git.ParseRepoPath(name)
	r.do(err)
	return path
}

func (r *testRoot) do(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}
