package hydrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// A running download of a file ends when its repository is removed, and leaves nothing.
func TestRemoveDuringFetch(t *testing.T) {
	t.Parallel()
	b := newFakeBucket()
	c := open(t, Options{Bucket: b})
	r := c.Repository("r")
	want := replog.File{Bytes: 4, SHA256: b.put("key", []byte("file"))}
	started := make(chan struct{})
	b.setHook(func(ctx context.Context, _ string, content []byte) ([]byte, error) {
		close(started)
		<-ctx.Done()
		return content, nil
	})
	const name = filesDir + "/file"
	result := make(chan error)
	go func() {
		_, _, err := r.OpenFile(t.Context(), name, "key", want)
		result <- err
	}()
	<-started
	if err := r.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := <-result; !fault.Is(err, fault.NotFound) {
		t.Errorf("OpenFile = %v, want NotFound", err)
	}
	if _, err := os.Stat(r.Dir()); !errors.Is(err, fs.ErrNotExist) || c.Usage().Bytes != 0 {
		t.Errorf("the local copy exists (%v) with %d bytes, want none", err, c.Usage().Bytes)
	}
}

// The cache counts the files that exist, also if readers open them while they are evicted.
func TestEvictionOfFilesInUse(t *testing.T) {
	t.Parallel()
	b := newFakeBucket()
	c := open(t, Options{Bucket: b, Budget: 250})
	r := c.Repository("r")
	content := make([]byte, 100)
	want := replog.File{Bytes: 100, SHA256: b.put("key", content)}
	var readers sync.WaitGroup
	for i := range 4 {
		readers.Go(func() {
			for n := range 200 {
				f, _, err := r.OpenFile(t.Context(), fmt.Sprintf("%s/%d", filesDir, (i+n)%5), "key", want)
				if err == nil {
					f.Close()
				} else if !fault.Is(err, fault.Unavailable) {
					t.Errorf("OpenFile = %v, want a file", err)
				}
			}
		})
	}
	readers.Wait()
	files, err := filepath.Glob(filepath.Join(r.Dir(), filesDir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	if used := c.Usage().Bytes; used != int64(100*len(files)) {
		t.Errorf("the cache counts %d bytes, want 100 for each of %d files", used, len(files))
	}
	for _, path := range files {
		if name, _ := filepath.Rel(r.Dir(), path); !r.HasFile(name) {
			t.Errorf("HasFile(%q) = false, want true", name)
		}
	}
}

// A reader that has opened a file before its removal does not add it again.
func TestAddFileDuringRemoval(t *testing.T) {
	t.Parallel()
	r := open(t, Options{Bucket: newFakeBucket()}).Repository("r")
	const name = filesDir + "/file"
	r.fetches[name] = &fetch{isRemoval: true}
	r.AddFile(name, 4)
	if r.HasFile(name) {
		t.Error("HasFile during the removal = true, want false")
	}
	delete(r.fetches, name)
	if r.AddFile(name, 4); !r.HasFile(name) {
		t.Error("HasFile after AddFile = false, want true")
	}
}

// A download replaces a link, or a FIFO, with the name of a file.
func TestNotRegularFile(t *testing.T) {
	t.Parallel()
	for what, make := range map[string]func(path string) error{
		"link": func(path string) error { return os.Symlink("/etc/hostname", path) },
		"fifo": func(path string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		b := newFakeBucket()
		r := open(t, Options{Bucket: b}).Repository("r")
		const name = filesDir + "/file"
		path := filepath.Join(r.Dir(), name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), make(path)); err != nil {
			t.Fatal(err)
		}
		want := replog.File{Bytes: 4, SHA256: b.put("key", []byte("file"))}
		f, isHit, err := r.OpenFile(t.Context(), name, "key", want)
		if err != nil || isHit {
			t.Fatalf("OpenFile instead of a %s = %t, %v, want a download", what, isHit, err)
		}
		if content, err := io.ReadAll(f); err != nil || string(content) != "file" {
			t.Errorf("instead of a %s: %q, %v, want the file", what, content, err)
		}
		f.Close()
	}
}
