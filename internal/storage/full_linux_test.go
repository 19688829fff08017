package storage_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/storage"
)

// Whoever makes a repository on a full disk is told so, and nothing of it is left.
func TestCreateOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("no file system of a test's own can be mounted here:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	r := newRoot(t, storage.Options{Root: dir, Runner: newRunner(t)})
	ballast, err := os.Create(filepath.Join(dir, "ballast"))
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
	if _, err := r.Create(t.Context(), r.path("app"), storage.NewRepository{}); !fault.Is(err, fault.Unavailable) || !strings.Contains(fault.Message(err), "full") {
		t.Errorf("%v (%s)", err, fault.KindOf(err))
	}
	for _, place := range []string{"app*", ".packhorse/new/*"} {
		if left, err := filepath.Glob(filepath.Join(dir, place)); err != nil || len(left) > 0 {
			t.Errorf("left: %q, %v", left, err)
		}
	}
	if err := ballast.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Create(t.Context(), r.path("app"), storage.NewRepository{}); err != nil {
		t.Error(err)
	}
}
