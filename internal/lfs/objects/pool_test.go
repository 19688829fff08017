package objects_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
)

// Without hard links each repository has a file of its own.
func TestWithoutLinks(t *testing.T) {
	t.Parallel()
	for _, linkError := range []error{syscall.EPERM, syscall.EMLINK, syscall.EXDEV} {
		w := newWorld(t, objects.Options{})
		w.WithoutLinks(linkError)
		content := random(200_000)
		for _, name := range []string{"app", "fork"} {
			r := w.repository(name)
			for range 2 {
				if err := w.upload(r, content); err != nil {
					t.Errorf("%v: %v", linkError, err)
				}
			}
			w.expect(r, content)
			if ok, err := w.Link(r, objectOf(random(1))); ok || err != nil {
				t.Errorf("Link of a missing object = %t, %v, want false", ok, err)
			}
		}
		w.expectFiles(0, 2)
	}
}

// The pool is shared, and what only the pool has can be removed.
func TestPool(t *testing.T) {
	t.Parallel()
	w := newWorld(t, objects.Options{})
	app, fork, other := w.repository("app"), w.repository("fork"), w.repository("other")
	content := random(1000)
	o := objectOf(content)
	if err := errors.Join(w.upload(app, content), w.upload(fork, content)); err != nil {
		t.Fatal(err)
	}
	if ok, err := w.Link(other, o); !ok || err != nil {
		t.Errorf("Link = %t, %v, want true", ok, err)
	}
	links := func() (n uint64) {
		err := w.WalkPool(func(_ lfs.Object, links uint64) error {
			n += links
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := links(); n != 4 {
		t.Errorf("links = %d, want 4", n)
	}
	for _, r := range []objects.Repository{app, fork, other} {
		w.expect(r, content)
		if err := errors.Join(w.Remove(r, o), w.Remove(r, o)); err != nil {
			t.Error(err)
		}
	}
	if n := links(); n != 1 {
		t.Errorf("links without repositories = %d, want 1", n)
	}
	if err := errors.Join(w.RemovePooled(o), w.RemovePooled(o)); err != nil {
		t.Error(err)
	}
	w.expectFiles(0, 0)
	if ok, err := w.Link(app, o); ok || err != nil {
		t.Errorf("Link of a removed object = %t, %v, want false", ok, err)
	}
}

// A file of another length or kind is replaced by the object.
func TestHeal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, objects.Options{})
	r := w.repository("app")
	content := random(1000)
	o := objectOf(content)
	if err := w.upload(r, content); err != nil {
		t.Fatal(err)
	}
	id := o.OID.String()
	file := filepath.Join(r.Dir, "lfs/objects", id[:2], id[2:4], id)
	for _, damage := range []func() error{
		func() error { return os.Truncate(file, 5) },
		func() error { return errors.Join(os.Remove(file), os.Symlink("/etc/hostname", file)) },
		func() error { return errors.Join(os.Remove(file), os.Symlink(file, file)) },
		func() error { return errors.Join(os.Remove(file), syscall.Mkfifo(file, 0o600)) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Open(r, o); err == nil {
			t.Error("a damaged object can be opened")
		}
		states, err := w.Check(t.Context(), r, lfs.Batch{Upload: true, Objects: []lfs.Object{o}})
		if err != nil || states[0].State != lfs.Missing {
			t.Errorf("Check = %v, %v, want missing", states, err)
		}
		if err := w.upload(r, content); err != nil {
			t.Error(err)
		}
		w.expect(r, content)
	}
}
