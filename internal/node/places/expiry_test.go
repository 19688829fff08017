package places

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

func isGone(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// TestExpireTogether removes several forks whose lifetime has ended, with and without a repository that borrows the
// objects of one of them.
func TestExpireTogether(t *testing.T) {
	t.Parallel()
	for _, isBorrowed := range []bool{false, true} {
		r := newTestRoot(t, t.TempDir())
		r.repo("app.git", "x")
		due := []git.RepoPath{r.path("gone.git")}
		for _, name := range []string{"one.git", "two.git"} {
			r.do(r.Fork(t.Context(), r.path("app"), r.path(name), ForkOptions{}))
			gittest.At(t, filepath.Join(r.dir, name)).Git("config", ExpiryKey, "2020-01-01T00:00:00Z")
			due = append(due, r.path(name))
		}
		if isBorrowed {
			r.repo("borrower.git", "y")
			r.do(os.WriteFile(filepath.Join(r.dir, "borrower.git/objects/info/alternates"),
				[]byte("../../two.git/objects\n"), 0o600))
		}
		r.do(r.Delete(t.Context(), r.path("app"), DeleteOptions{}))
		r.expireAll(t.Context(), due, func(ctx context.Context, path git.RepoPath, o DeleteOptions) error {
			return r.Delete(ctx, path, o)
		})
		if !isGone(filepath.Join(r.dir, "one.git")) || isGone(filepath.Join(r.dir, "two.git")) == isBorrowed {
			t.Errorf("borrowed %v: not the forks that others do not need, and only these, were removed", isBorrowed)
		}
		gittest.WaitFor(t, "the network is removed unless it has a member", func() bool {
			found, _ := filepath.Glob(filepath.Join(r.dir, ".packhorse/networks/*"))
			return len(found) == 0 || isBorrowed
		})
	}
}

// TestUnusedNetworks removes the network of a fork that a crash has ended, and no other.
func TestUnusedNetworks(t *testing.T) {
	t.Parallel()
	r := newTestRoot(t, t.TempDir())
	r.repo("app.git", "x")
	r.do(r.Fork(t.Context(), r.path("app"), r.path("fork.git"), ForkOptions{}))
	used := networkOf(t, r.dir)
	left := filepath.Join(r.dir, ".packhorse/networks/left/objects")
	young := filepath.Join(r.dir, ".packhorse/networks/young/objects")
	r.do(errors.Join(os.MkdirAll(left, 0o700), os.MkdirAll(young, 0o700)))
	old := time.Now().Add(-2 * leftoverAge)
	r.do(errors.Join(os.Chtimes(left, old, old), os.Chtimes(used, old, old)))
	r.leaveUnused(nil, time.Now()) // as if the walk had missed the members
	gittest.WaitFor(t, "the network without members is removed", func() bool { return isGone(left) })
	r.Close()
	if isGone(used) || isGone(young) {
		t.Error("a network in use, or that is just being made, was removed")
	}
}
