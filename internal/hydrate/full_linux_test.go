package hydrate

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// A full disk evicts idle repositories, and otherwise fails with the reason. Nothing is left behind.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("a test cannot mount a file system here:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	b := newFakeBucket()
	c := open(t, Options{Bucket: b, Root: root, Budget: 1 << 30, MinFree: 1})
	old, oldRecord := c.Repository("old"), newRecord()
	b.addPack(oldRecord, "old", "1", 200<<10)
	r, rec := c.Repository("new"), newRecord()
	b.addPack(rec, "new", "1", 500<<10)
	done := use(t, old, oldRecord)
	ballast, err := os.Create(filepath.Join(root, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	defer ballast.Close()
	for size := 64 << 10; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = ballast.Write(make([]byte, size))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	if err := ballast.Truncate(400 << 10); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Use(t.Context(), rec, nil); !fault.Is(err, fault.Unavailable) ||
		!strings.Contains(fault.Message(err), "disk") {
		t.Errorf("Use on a full disk: %v, want Unavailable with the reason", err)
	}
	checkEmptyState(t, c)
	done()
	r.failed = nil
	c.options.MinFree = -1 << 40 // the floor does not help: only the write fails
	use(t, r, rec)()
	checkFiles(t, b, r, rec)
	if old.Complete(oldRecord) {
		t.Error("an idle repository was kept on a full disk, want it evicted")
	}
}
