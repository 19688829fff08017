package places

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// noGit is a RunGit that does nothing.
func noGit(context.Context, *repo.Repo, GitCommand) error { return nil }

// fork forks the repository "app".
func (r *testRoot) fork(target string) {
	r.t.Helper()
	r.do(r.Fork(r.t.Context(), r.path("app"), r.path(target), ForkOptions{}))
}

// family returns the family of the repository "app", and its place. The caller closes the family and the repository.
func (r *testRoot) family() (*family, *dirPlace) {
	r.t.Helper()
	p, err := r.acquire(r.path("app"))
	r.do(err)
	_, err = p.Open(r.t.Context(), r.Repo)
	r.do(err)
	f, err := p.family(r.t.Context(), false)
	r.do(err)
	return f, p
}

// A removal that waits for a fork does not keep the fork from its network.
func TestForkDuringRemoval(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	made := newTestRoot(t, dir)
	made.repo("app.git", "x")
	made.fork("one")
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(t, dir)
		f, p := r.family()
		collection := r.Claims.Gates.Collect(p.repo.Common)
		release, err := r.Claims.Gates.Hold(t.Context(), p.repo.Common) // as a fork
		r.do(err)
		ended := make(chan error)
		go func() { ended <- f.remove(t.Context(), noGit, nil, map[git.ObjectID]bool{}, &Purged{}) }()
		synctest.Wait()
		if !r.sharing.TryAcquire(1) {
			t.Fatal("the removal keeps forks from the network while it waits for them")
		}
		r.sharing.Release(1)
		release()
		r.do(<-ended)
		collection.End()
		f.close()
		r.do(p.repo.Close())
	})
}
