package objects_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
)

// mount mounts a file system of a test's own.
func mount(t *testing.T, dir, size string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skip("no file system of a test's own can be mounted here:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

// An upload to a full disk fails with an error of its own kind, leaves nothing, and succeeds when there is room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for _, floor := range []int64{-1, 256 << 10} {
		dir := t.TempDir()
		mount(t, dir, "1m")
		w := worldIn(t, dir, objects.Options{MinFree: floor})
		r := w.repository("app")
		first := random(200_000)
		if err := w.upload(r, first); err != nil {
			t.Fatal(err)
		}
		ballast := filepath.Join(dir, "ballast")
		if err := os.WriteFile(ballast, make([]byte, 600<<10), 0o600); err != nil {
			t.Fatal(err)
		}
		content := random(300_000)
		u := lfs.Upload{Object: objectOf(content)}
		n, err := w.Upload(t.Context(), r, u, bytes.NewReader(content))
		if n != 0 || !fault.Is(err, fault.Full) || objects.Reason(err) != "disk_full" {
			t.Errorf("floor %d: upload to a full disk: %d, %v, want Full", floor, n, err)
		}
		w.expectFiles(0, 3)
		if err := os.Truncate(ballast, 0); err != nil {
			t.Fatal(err)
		}
		if err := w.upload(r, content); err != nil {
			t.Errorf("floor %d: upload after room was made: %v", floor, err)
		}
		w.expect(r, first)
		w.expect(r, content)
	}
}

// The metric of free space is what uploads may take. It is absent before there is a pool.
func TestFreeSpaceMetric(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mount(t, dir, "1m")
	for _, want := range []float64{0, 1<<20 - 256<<10} {
		synctest.Test(t, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			w := worldIn(t, dir, objects.Options{MinFree: 256 << 10, Registerer: registry})
			synctest.Wait()
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			got := 0.0
			for _, f := range families {
				if f.GetName() == "packhorse_lfs_free_bytes" {
					got = f.GetMetric()[0].GetGauge().GetValue()
				}
			}
			if got > want || got < want-64<<10 {
				t.Errorf("free space = %v, want %v without the files of the pool", got, want)
			}
			if err := w.upload(w.repository("app"), random(1000)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// The disk becomes full during an upload: the part makes room, so that other uploads can end.
func TestDiskFills(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mount(t, dir, "1m")
	w := worldIn(t, dir, objects.Options{})
	r := w.repository("app")
	content := random(2 << 20)
	u := lfs.Upload{Object: objectOf(content)}
	u.Size = 500_000 // the client's mistake, or other uploads meanwhile
	fill := readerFunc(func(p []byte) (int, error) {
		return len(p), os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, 700<<10), 0o600)
	})
	if n, err := w.Upload(t.Context(), r, u, fill); n != 0 || !fault.Is(err, fault.Full) {
		t.Errorf("upload while the disk becomes full: %d, %v, want Full", n, err)
	}
	w.expectFiles(0, 1)
}

// A repository on another file system than the pool has copies.
func TestOtherFileSystem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mount(t, filepath.Join(dir, "mounted"), "1m")
	w := worldIn(t, dir, objects.Options{})
	r, other := w.repository("mounted/app"), w.repository("other")
	content := random(300_000)
	for range 2 {
		if err := w.upload(r, content); err != nil {
			t.Error(err)
		}
	}
	w.expect(r, content)
	w.expectFiles(0, 2)
	if ok, err := w.Link(r, objectOf(content)); !ok || err != nil {
		t.Errorf("Link of an object that the repository has = %t, %v, want true", ok, err)
	}
	if err := w.upload(other, content); err != nil {
		t.Error(err)
	}
	if n, err := w.Upload(t.Context(), r, lfs.Upload{Object: objectOf(random(900_000))},
		bytes.NewReader(random(900_000))); n != 0 || !fault.Is(err, fault.Full) {
		t.Errorf("upload to a full file system: %d, %v, want Full", n, err)
	}
	w.expectFiles(0, 3)
}

// A read-only file system serves objects, and refuses uploads.
func TestReadOnlyFileSystem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mount(t, dir, "1m")
	w := worldIn(t, dir, objects.Options{})
	r := w.repository("app")
	content := random(1000)
	if err := w.upload(r, content); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	w = worldIn(t, dir, objects.Options{ReadOnly: true})
	w.expect(r, content)
	if err := w.upload(r, random(1001)); !errors.Is(err, unix.EROFS) {
		t.Errorf("upload to a read-only file system: %v, want EROFS", err)
	}
	if err := w.upload(r, content); !errors.Is(err, unix.EROFS) {
		t.Errorf("upload of an object that is there: %v, want EROFS", err)
	}
}
