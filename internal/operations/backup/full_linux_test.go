package backup

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// A full disk ends a backup. The one before stays complete, and more room continues it.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a.git", "b.git")
	w.dir = t.TempDir()
	if err := unix.Mount("tmpfs", w.dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("SKIPPED: only root can mount a small disk: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(w.dir, unix.MNT_DETACH) })
	w.backup()
	was := files(t, w.restore().root)
	for _, path := range []string{"a.git", "b.git"} {
		r := w.repo(path)
		r.Git("-c", "core.compression=0", "update-ref", "refs/tags/big", r.Blob(strings.Repeat(path+"\n", 1<<17)).String())
		r.Git("-c", "core.compression=0", "repack", "-adFq")
	}
	_, err := Run(t.Context(), optionsOf(w.root, w.dir))
	if !disk.IsFull(err) || !strings.Contains(err.Error(), "make room, and run the command again; it continues (the") {
		t.Fatalf("backup to a full disk: %v", err)
	}
	compare(t, files(t, w.restore().root), was)
	if err := unix.Mount("tmpfs", w.dir, "tmpfs", unix.MS_REMOUNT, "size=100m"); err != nil {
		t.Fatal(err)
	}
	w.backup()
	compare(t, files(t, w.restore().root), files(t, w.root))
}
