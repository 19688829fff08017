package storage_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// The trash on another mounted file system is emptied at the start too. Files that do not belong in the list of trash
// directories stay.
func TestTrashElsewhereIsEmptiedAtTheStart(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	before := newRoot(t, storage.Options{Root: dir})
	mounted := filepath.Join(dir, "team/mounted\nhere")
	if err := os.MkdirAll(mounted, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := before.Own(mounted); err != nil {
			t.Fatal(err)
		}
	}
	list := filepath.Join(dir, ".packhorse/elsewhere")
	text, err := os.ReadFile(list)
	if err != nil || string(text) != "team/mounted\nhere/.packhorse\x00" {
		t.Errorf("the list is %q, %v", text, err)
	}
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	left := func(own string) string {
		file := filepath.Join(own, "trash/1/objects/file")
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(own, "trash/1")
	}
	swept := left(filepath.Join(mounted, ".packhorse"))
	kept := []string{left(filepath.Join(outside, ".packhorse")), left(filepath.Join(dir, "plain"))}
	up, err := filepath.Rel(dir, filepath.Join(outside, ".packhorse"))
	before.do(errors.Join(err, os.Symlink(outside, filepath.Join(dir, "link"))))
	before.do(os.WriteFile(list, []byte(string(text)+up+"\x00link/.packhorse\x00plain\x00gone/.packhorse\x00"), 0o600))

	after := newRoot(t, storage.Options{Root: dir})
	gittest.WaitFor(t, "the sweep removes "+swept, func() bool {
		_, err := os.Stat(swept)
		return errors.Is(err, fs.ErrNotExist)
	})
	before.do(after.Close())
	for _, path := range kept {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

// The trash may be swept at any moment of a deletion.
func TestDeleteBesideTheSweep(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{})
	stop, swept := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				swept <- nil
				return
			default:
			}
			if err := r.Sweep(filepath.Join(r.dir, ".packhorse")); err != nil {
				swept <- err
				return
			}
		}
	}()
	for i := range 500 {
		dir := filepath.Join(r.dir, strconv.Itoa(i))
		r.do(os.Mkdir(dir, 0o700))
		if err := r.Discard(dir); err != nil {
			t.Errorf("deletion %d: %v", i, err)
			break
		}
	}
	close(stop)
	if err := <-swept; err != nil {
		t.Error(err)
	}
}

// If it is not certain that the creation or removal of a repository is on disk, the call returns an error that names
// this. Watches still receive the event.
func TestChangesThatAreNotOnDisk(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{Runner: newRunner(t), CheckInterval: time.Hour})
	w := r.watch(storage.WatchFrom{Path: r.path("app.git")})
	if e := w.next(); !e.Gone {
		t.Errorf("at first: %+v", e)
	}
	bad := errors.New("no disk")
	r.FailSync(bad)
	// The team's directory would have to be on disk first: there is nothing.
	if err := r.create("team/app"); !errors.Is(err, bad) {
		t.Errorf("create below a new directory: %v", err)
	}
	r.refuses("team/app", fault.NotFound, "")

	if err := r.create("app"); !errors.Is(err, bad) ||
		fault.Message(err) != "the repository was created, but can be lost in a power failure" {
		t.Errorf("create: %v", err)
	}
	if e := w.next(); e.Gone || !e.Reset {
		t.Errorf("made: %+v", e)
	}
	if err := r.Delete(t.Context(), r.path("app"), storage.DeleteOptions{}); !errors.Is(err, bad) ||
		fault.Message(err) != "the repository was deleted, but can reappear after a power failure" {
		t.Errorf("delete: %v", err)
	}
	if e := w.next(); !e.Gone {
		t.Errorf("deleted: %+v", e)
	}
	r.emptied()
	w.end()
}
