package objects_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
)

// world is a Store with repositories below a directory.
type world struct {
	*objects.Store
	t   *testing.T
	dir string
}

func newWorld(t *testing.T, o objects.Options) world {
	t.Helper()
	return worldIn(t, t.TempDir(), o)
}

func worldIn(t *testing.T, dir string, o objects.Options) world {
	t.Helper()
	o.Dir = filepath.Join(dir, "pool")
	if o.MinFree == 0 {
		o.MinFree = -1
	}
	w := world{objects.New(o), t, dir}
	t.Cleanup(w.Close)
	return w
}

// repository makes the directory of a repository.
func (w world) repository(name string) objects.Repository {
	w.t.Helper()
	r := objects.Repository{Dir: filepath.Join(w.dir, name), ID: name}
	if err := os.MkdirAll(r.Dir, 0o755); err != nil {
		w.t.Fatal(err)
	}
	return r
}

func objectOf(content []byte) lfs.Object {
	return lfs.Object{OID: sha256.Sum256(content), Size: int64(len(content))}
}

// upload uploads a whole object.
func (w world) upload(r objects.Repository, content []byte) error {
	o := objectOf(content)
	size, err := w.Upload(w.t.Context(), r, lfs.Upload{Object: o}, bytes.NewReader(content))
	if err == nil && size != o.Size {
		err = fmt.Errorf("Upload = %d bytes, want %d", size, o.Size)
	}
	return err
}

// read returns the content of an object.
func (w world) read(r objects.Repository, o lfs.Object) ([]byte, error) {
	f, err := w.Open(r, o)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// expect fails the test unless the repository has the object.
func (w world) expect(r objects.Repository, content []byte) {
	w.t.Helper()
	if got, err := w.read(r, objectOf(content)); err != nil || !bytes.Equal(got, content) {
		w.t.Errorf("object of %s = %d bytes, %v, want %d bytes", r.ID, len(got), err, len(content))
	}
}

// files returns the number of files below the world's directory, of parts and of others.
func (w world) files() (parts, others int) {
	w.t.Helper()
	err := filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || d.IsDir():
		case filepath.Base(filepath.Dir(path)) == "incoming":
			parts++
		default:
			others++
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return parts, others
}

// expectFiles fails the test unless there are so many parts and other files.
func (w world) expectFiles(parts, others int) {
	w.t.Helper()
	if p, o := w.files(); p != parts || o != others {
		w.t.Errorf("%d parts and %d other files, want %d and %d", p, o, parts, others)
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(b)
	return b
}
