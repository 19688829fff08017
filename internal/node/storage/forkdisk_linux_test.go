package storage_test

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// A fork to another disk borrows from a network on the disk of its source. A repository is not renamed to another disk.
func TestForkAcrossDisks(t *testing.T) {
	t.Parallel()
	other, _ := fullDisk(t) // an empty one
	dir := t.TempDir()
	r := newRoot(t, storage.Options{Root: dir, Runner: newRunner(t)})
	below := filepath.Join(dir, "other")
	r.do(unix.Mkdir(below, 0o700))
	r.do(unix.Mount(other, below, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(below, unix.MNT_DETACH) })
	source := r.repo("other/app.git", "x")
	for _, name := range []string{"fork", "deep/down/fork", "other/fork"} {
		fork := r.fork("other/app", name)
		fork.Git("fsck", "--strict")
		r.serves(name, source.ID("main"))
	}
	r.repo("here.git", "y")
	r.fork("here", "other/here").Git("fsck", "--strict")
	for from, to := range map[string]string{"fork": "other/moved", "other/fork": "moved"} {
		if err := r.Rename(t.Context(), r.path(from), r.path(to)); !fault.Is(err, fault.Denied) {
			t.Errorf("renaming %s to another disk: %v", from, err)
		}
		gittest.At(t, filepath.Join(dir, from+".git")).Git("fsck", "--strict")
	}
	r.do(r.Delete(t.Context(), r.path("other/app"), places.DeleteOptions{}))
	gittest.At(t, filepath.Join(dir, "fork.git")).Git("fsck", "--strict")
}

// A fork, a creation and a renaming on a full disk fail cleanly, and succeed when there is room.
func TestForkOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir, fill := fullDisk(t)
	r := newRoot(t, storage.Options{Root: dir, Runner: newRunner(t)})
	source := r.repo("app.git", "x")
	r.fork("app", "before")
	empty := fill()
	_, err := r.Fork(t.Context(), r.path("app"), r.path("fork"), places.ForkOptions{})
	if err == nil || fault.Is(err, fault.Internal) {
		t.Errorf("a fork on a full disk: %v", err)
	}
	if err := r.Rename(t.Context(), r.path("before"), r.path("deep/before")); err != nil {
		r.refuses("deep/before", fault.NotFound, "no repository")
	}
	empty()
	r.fork("app", "fork").Git("fsck", "--strict")
	if _, err := r.refs("before"); err == nil {
		r.do(r.Rename(t.Context(), r.path("before"), r.path("deep/before")))
	}
	r.serves("deep/before", source.ID("main"))
	gittest.At(t, filepath.Join(dir, "deep/before.git")).Git("fsck", "--strict")
	source.Git("fsck", "--strict")
}
