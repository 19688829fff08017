package hydrate

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// mountSmall mounts a file system of 1 MiB.
func mountSmall(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("a test cannot mount a file system here:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

// fill writes to a new file until the file system of dir is full.
func fill(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	for size := 64 << 10; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	return f
}

// Leftovers that cannot be removed do not keep a node from starting.
func TestLeftoversStay(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	busy := filepath.Join(root, stateDir, "new-x-1", "busy")
	if err := os.MkdirAll(busy, 0o755); err != nil {
		t.Fatal(err)
	}
	mountSmall(t, busy)
	open(t, Options{Bucket: newFakeBucket(), Root: root})
}

// A disk that leftovers or idle repositories fill does not keep a node from starting.
func TestStartOnFullDisk(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	mountSmall(t, root)
	b := newFakeBucket()
	for _, leftover := range []bool{true, false} {
		c, err := Open(Options{Bucket: b, Root: root, Budget: 1 << 30, MinFree: 1})
		if err != nil {
			t.Fatal(err)
		}
		rs, recs := repositories(c, b, 1)
		apply(t, rs[0], recs[0])
		use(t, rs[0], recs[0])()
		dir := root
		if leftover {
			dir = c.state
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		fill(t, dir).Close()
		if c, err = Open(Options{Bucket: b, Root: root, Budget: 1 << 30, MinFree: 1}); err != nil {
			t.Fatalf("Open with a full disk (leftover: %t) = %v, want nil", leftover, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Refs, too, evict idle repositories from a full disk.
func TestApplyOnFullDisk(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	mountSmall(t, root)
	b := newFakeBucket()
	c := open(t, Options{Bucket: b, Root: root, Budget: 1 << 30, MinFree: 1})
	idle, idleRecord := c.Repository("idle"), newRecord()
	b.addPack(idleRecord, "idle", "1", 200<<10)
	done := use(t, idle, idleRecord)
	fill(t, root)
	rec := newRecord()
	content := make([]byte, 100<<10)
	rec.Refs = replog.Refs{Checkpoint: "refs/1-x", Bytes: int64(len(content)),
		SHA256: b.put("repos/new/refs/1-x", content)}
	r := c.Repository("new")
	if err := r.Apply(t.Context(), rec); !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) == 0 ||
		!strings.Contains(fault.Message(err), "disk has only") {
		t.Errorf("Apply on a full disk = %v, want Unavailable with the reason and a retry hint", err)
	}
	done()
	if err := r.Apply(t.Context(), rec); err != nil {
		t.Errorf("Apply on a full disk with an idle repository = %v, want nil", err)
	}
	if idle.Complete(idleRecord) {
		t.Error("an idle repository was kept on a full disk, want it evicted")
	}
}

// A full disk evicts idle repositories, and otherwise fails with the reason. Nothing is left behind.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	mountSmall(t, root)
	b := newFakeBucket()
	c := open(t, Options{Bucket: b, Root: root, Budget: 1 << 30, MinFree: 1})
	old, oldRecord := c.Repository("old"), newRecord()
	b.addPack(oldRecord, "old", "1", 200<<10)
	r, rec := c.Repository("new"), newRecord()
	b.addPack(rec, "new", "1", 500<<10)
	done := use(t, old, oldRecord)
	if err := fill(t, root).Truncate(400 << 10); err != nil {
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
