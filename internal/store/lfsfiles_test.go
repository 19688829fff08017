package store

import (
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/packhorse-git/packhorse/internal/lfs"
)

// Objects behind a link instead of lfs/objects are found. A link to nothing is an error, not an empty repository.
func TestLFSFilesBehindALink(t *testing.T) {
	t.Parallel()
	dir, target := t.TempDir(), t.TempDir()
	id := lfs.OID(sha256.Sum256([]byte("content")))
	found := 0
	count := func(oid lfs.OID, path string, size int64) error {
		if oid != id || path != filepath.Join(dir, lfsFile(id)) || size != 7 {
			t.Errorf("found %s at %s with %d bytes, want %s with 7", oid, path, size, id)
		}
		found++
		return nil
	}
	if err := lfsFiles(dir, count); err != nil || found != 0 {
		t.Errorf("without lfs/objects: %d objects, %v, want none", found, err)
	}
	file := filepath.Join(target, lfsFile(id))
	err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("content"), 0o444),
		os.Mkdir(filepath.Join(dir, "lfs"), 0o755),
		os.Symlink(filepath.Join(target, "lfs/objects"), filepath.Join(dir, "lfs/objects")))
	if err != nil {
		t.Fatal(err)
	}
	if err := lfsFiles(dir, count); err != nil || found != 1 {
		t.Errorf("behind a link: %d objects, %v, want one", found, err)
	}
	if err := os.RemoveAll(target); err != nil {
		t.Fatal(err)
	}
	if err := lfsFiles(dir, count); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("behind a link to nothing: %v, want an error", err)
	}
}
