package storage_test

import (
	"os"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// TestLFSLocks locks a file in one repository: others do not have the lock, and a renamed one keeps it.
func TestLFSLocks(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{LFS: &objects.Options{MinFree: -1}, Pushes: newPushServer(t)})
	gittest.InitAt(t, r.dir+"/one.git")
	gittest.InitAt(t, r.dir+"/two.git")
	lock := func(repository string, q lfs.LockRequest) (lfs.LockAnswer, error) {
		answer, outcome, err := r.LFSLocks(t.Context(), r.path(repository), node.Session{}, q)
		if outcome.Command != node.CommandLFSLocks {
			t.Errorf("outcome.Command = %q, want %q", outcome.Command, node.CommandLFSLocks)
		}
		return answer, err
	}
	made, err := lock("one", lfs.LockRequest{Action: lfs.CreateLock, Caller: "ann", Path: "a.psd"})
	r.do(err)
	r.do(os.Rename(r.dir+"/one.git", r.dir+"/renamed.git"))
	for repository, want := range map[string]int{"renamed": 1, "two": 0} {
		got, err := lock(repository, lfs.LockRequest{Action: lfs.ListLocks, Caller: "ann"})
		if err != nil || len(got.Locks) != want {
			t.Errorf("locks of %s = %v, %v, want %d", repository, got.Locks, err, want)
		}
	}
	if _, err := lock("two", lfs.LockRequest{Action: lfs.Unlock, Caller: "ann", ID: made.Locks[0].ID}); !fault.Is(err,
		fault.NotFound) {
		t.Errorf("unlock in another repository: %v, want NotFound", err)
	}
	if _, err := lock("three", lfs.LockRequest{Action: lfs.ListLocks}); !fault.Is(err, fault.NotFound) {
		t.Errorf("locks of a missing repository: %v, want NotFound", err)
	}
	off := newRoot(t, storage.Options{Root: r.dir, Pushes: newPushServer(t)})
	if _, _, err := off.LFSLocks(t.Context(), off.path("two"), node.Session{}, lfs.LockRequest{}); !fault.Is(err,
		fault.NotFound) {
		t.Errorf("lock without LFS: %v, want NotFound", err)
	}
}
