package objects_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
)

// asUser runs the test as another user if this one is root, because root can write to read-only files. It reports
// whether it has run the test.
func asUser(t *testing.T) (ended bool) {
	t.Helper()
	if os.Getuid() != 0 {
		return false
	}
	const nobody = 65534
	dir, err := os.MkdirTemp("", "packhorse-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
	c.Dir, c.Env = dir, append(os.Environ(), "TMPDIR="+dir)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Skip("the test needs another user:", err)
	}
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("as another user: %v\n%s", err, out)
	}
	return true
}

// partOf returns the path of the part that uploads of an object continue.
func (w world) partOf(r objects.Repository, o lfs.Object) string {
	sum := sha256.Sum256([]byte(r.ID))
	return filepath.Join(w.dir, "pool", "incoming", fmt.Sprintf("%v-%x", o.OID, sum[:16]))
}

func (w world) fileOf(r objects.Repository, o lfs.Object) string {
	id := o.OID.String()
	return filepath.Join(r.Dir, "lfs", "objects", id[:2], id[2:4], id)
}

// A part cannot become an object, because something is in its place: the client can repeat the end, or all of it.
func TestFailedCommit(t *testing.T) {
	if asUser(t) {
		return
	}
	w := newWorld(t, objects.Options{})
	r := w.repository("app")
	content := random(1000)
	o := objectOf(content)
	for _, offset := range []int64{0, o.Size - 1} {
		obstacle := filepath.Dir(w.fileOf(r, o))
		if err := errors.Join(os.RemoveAll(obstacle), os.MkdirAll(filepath.Dir(obstacle), 0o700),
			os.WriteFile(obstacle, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if err := w.upload(r, content); !errors.Is(err, syscall.ENOTDIR) {
			t.Errorf("upload with an obstacle: %v, want ENOTDIR", err)
		}
		if err := os.Remove(obstacle); err != nil {
			t.Fatal(err)
		}
		u := lfs.Upload{Object: o, Offset: offset}
		if n, err := w.Upload(t.Context(), r, u, bytes.NewReader(content[offset:])); n != o.Size || err != nil {
			t.Errorf("upload from %d without the obstacle = %d, %v, want %d", offset, n, err, o.Size)
		}
		w.expect(r, content)
		w.expectFiles(0, 2)
	}
}

// The process was killed before it could remove the name of a part that is an object: the object does not change, and
// the client can upload it again.
func TestPartThatIsObject(t *testing.T) {
	if asUser(t) {
		return
	}
	w := newWorld(t, objects.Options{})
	r, fork := w.repository("app"), w.repository("fork")
	content := random(1000)
	o := objectOf(content)
	if err := errors.Join(w.upload(r, content), w.upload(fork, content)); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []os.FileMode{0o600, 0o444} {
		if err := errors.Join(os.Link(w.fileOf(fork, o), w.partOf(r, o)), os.Chmod(w.partOf(r, o), mode)); err != nil {
			t.Fatal(err)
		}
		checked := readerFunc(func([]byte) (int, error) {
			w.expect(fork, content)
			return 0, errors.New("interrupted")
		})
		if n, err := w.Upload(t.Context(), r, lfs.Upload{Object: o}, checked); n != 0 || !fault.Is(err, fault.Cancelled) {
			t.Errorf("interrupted upload over a file with mode %v = %d, %v, want Cancelled", mode, n, err)
		}
		if err := w.upload(r, content); err != nil {
			t.Errorf("upload over a file with mode %v: %v", mode, err)
		}
		w.expect(r, content)
		w.expectFiles(0, 3)
		if info, err := os.Stat(w.fileOf(fork, o)); err != nil || info.Mode() != 0o444 {
			t.Errorf("mode of the object = %v, %v, want 0444", info.Mode(), err)
		}
	}
}

// Another repository's damaged file, or the repository's own, does not replace the bytes of an upload.
func TestDamagedFileOfSameSize(t *testing.T) {
	t.Parallel()
	w := newWorld(t, objects.Options{})
	r, other := w.repository("app"), w.repository("other")
	content := random(300_000)
	o := objectOf(content)
	if err := w.upload(other, content); err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(content)
	damaged[len(damaged)-1] ^= 1
	damage := func(r objects.Repository) {
		file := w.fileOf(r, o)
		if err := errors.Join(os.Chmod(file, 0o600), os.WriteFile(file, damaged, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	damage(other)
	if err := w.upload(r, content); err != nil {
		t.Error(err)
	}
	w.expect(r, content)
	if err := w.VerifyPooled(t.Context(), o, nil); err != nil {
		t.Errorf("the pool after the upload: %v, want no damage", err)
	}
	if err := w.upload(other, content); err != nil {
		t.Error(err)
	}
	w.expect(other, content)
	damage(r)
	if err := errors.Join(w.RemovePooled(o), w.upload(r, content)); err != nil {
		t.Error(err)
	}
	w.expect(r, content)
	w.expectFiles(0, 3)
}

// An upload renews the object of a repository, also if the pool has lost it.
func TestUploadRenews(t *testing.T) {
	t.Parallel()
	w := newWorld(t, objects.Options{})
	r := w.repository("app")
	content := random(1000)
	o, old := objectOf(content), time.Now().Add(-48*time.Hour)
	if err := errors.Join(w.upload(r, content), w.RemovePooled(o), os.Chtimes(w.fileOf(r, o), old, old),
		os.Rename(filepath.Join(w.dir, "pool"), filepath.Join(w.dir, "old"))); err != nil {
		t.Fatal(err)
	}
	if err := w.upload(r, content); err != nil {
		t.Error(err)
	}
	info, err := os.Stat(w.fileOf(r, o))
	if err != nil || time.Since(info.ModTime()) > time.Hour {
		t.Errorf("time after an upload = %v, %v, want now", info.ModTime(), err)
	}
}

// Files that killed processes leave in trees are removed when they are old.
func TestTemporaryFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t, objects.Options{Expiry: time.Hour})
	r := w.repository("app")
	if err := w.upload(r, random(1000)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Join(r.Dir, "lfs", "objects"), filepath.Join(w.dir, "pool")} {
		if err := os.WriteFile(filepath.Join(dir, "incoming-x"), []byte("left"), 0o400); err != nil {
			t.Fatal(err)
		}
	}
	clean := func(now time.Time) {
		t.Helper()
		c, err := w.NewCollector(r, now.Add(-time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		w.ExpireParts(now)
		if err := c.Recover(); err != nil {
			t.Error(err)
		}
	}
	clean(time.Now())
	w.expectFiles(0, 4)
	clean(time.Now().Add(2 * time.Hour))
	w.expectFiles(0, 2)
}

// Parts of interrupted uploads do not take more disk space than the quota leaves.
func TestQuotaOfParts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, objects.Options{Quota: 10_000})
	r, other := w.repository("app"), w.repository("other")
	if err := w.upload(r, random(1000)); err != nil {
		t.Fatal(err)
	}
	part := func(r objects.Repository, size int) error {
		o := objectOf(random(size))
		u := lfs.Upload{Object: o, Partial: true}
		_, err := w.Upload(t.Context(), r, u, bytes.NewReader(random(size)[:size-1]))
		return err
	}
	if err := part(other, 9000); err != nil {
		t.Fatal(err)
	}
	for size := 8000; size < 8020; size++ {
		if err := part(r, size); err != nil {
			t.Fatal(err)
		}
	}
	w.expectFiles(2, 2)
	kept := random(8019)
	n, err := w.UploadedBytes(t.Context(), r, objectOf(kept))
	if n != 8018 || err != nil {
		t.Fatalf("UploadedBytes of the last part = %d, %v, want 8018", n, err)
	}
	if err := w.upload(r, random(500)); err != nil {
		t.Error(err)
	}
	w.expectFiles(2, 4)
	u := lfs.Upload{Object: objectOf(kept), Offset: n}
	if _, err := w.Upload(t.Context(), r, u, bytes.NewReader(kept[n:])); err != nil {
		t.Error(err)
	}
	w.expectFiles(1, 6)
	huge := lfs.Upload{Object: lfs.Object{OID: objectOf(kept).OID, Size: 1<<63 - 1}}
	if _, err := w.Upload(t.Context(), other, huge, bytes.NewReader(nil)); !fault.Is(err, fault.Full) {
		t.Errorf("upload of a huge object: %v, want Full", err)
	}
}

// remote is an object storage that takes everything.
type remote struct{ objects.Remote }

func (remote) MaxObject() int64 { return 1 << 30 }

func (remote) Begin(context.Context, lfs.Object) (func(int64) error, func(), error) {
	return func(int64) error { return nil }, func() {}, nil
}
func (remote) Put(context.Context, lfs.Object) error { return nil }

// Uploads to an object storage leave a quarter of the floor free, although the storage makes room.
func TestFloorOfRemote(t *testing.T) {
	t.Parallel()
	var st unix.Statfs_t
	if err := unix.Statfs(t.TempDir(), &st); err != nil {
		t.Fatal(err)
	}
	free := int64(st.Bavail) * int64(st.Bsize)
	for floor, want := range map[int64]bool{2 * free: true, 8 * free: false} {
		w := newWorld(t, objects.Options{MinFree: floor, Copies: true})
		r := w.repository("app")
		r.Remote = remote{}
		if err := w.upload(r, random(1000)); (err == nil) != want || !want && objects.Reason(err) != "disk_full" {
			t.Errorf("upload with %d bytes free and the floor %d: %v, want success: %t", free, floor, err, want)
		}
	}
}
