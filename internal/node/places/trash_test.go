package places

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// The trash on another mounted file system is emptied at the start too. Files that do not belong in the list of trash
// directories stay.
func TestTrashElsewhereIsEmptiedAtTheStart(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	before := newTestRoot(t, dir)
	mounted := filepath.Join(dir, "team/mounted\nhere")
	if err := os.MkdirAll(mounted, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := before.privateDirectory(mounted); err != nil {
			t.Fatal(err)
		}
	}
	list := filepath.Join(dir, ".packhorse/elsewhere")
	text, err := os.ReadFile(list)
	if err != nil || string(text) != "team/mounted\nhere/.packhorse\x00" {
		t.Errorf("the list is %q, %v", text, err)
	}
	before.Close()
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

	after := newTestRoot(t, dir)
	gittest.WaitFor(t, "the sweep removes "+swept, func() bool {
		_, err := os.Stat(swept)
		return errors.Is(err, fs.ErrNotExist)
	})
	after.Close()
	for _, path := range kept {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

// The trash may be swept at any moment of a deletion.
func TestDeleteBesideTheSweep(t *testing.T) {
	t.Parallel()
	r := newTestRoot(t, t.TempDir())
	stop, swept := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				swept <- nil
				return
			default:
			}
			if err := emptyTrash(t.Context(), filepath.Join(r.dir, ".packhorse")); err != nil {
				swept <- err
				return
			}
		}
	}()
	for i := range 500 {
		dir := filepath.Join(r.dir, strconv.Itoa(i))
		r.do(os.Mkdir(dir, 0o700))
		if _, err := r.moveToTrash(dir); err != nil {
			t.Errorf("deletion %d: %v", i, err)
			break
		}
	}
	close(stop)
	if err := <-swept; err != nil {
		t.Error(err)
	}
}

// A deletion waits for pushes, whose programs would make the directory again. It is refused while one takes long.
func TestDeleteDuringPush(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	newTestRoot(t, dir).repo("app.git", "x")
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(t, dir)
		common := filepath.Join(r.dir, "app.git")
		push, err := r.Claims.Gates.Enter(t.Context(), common)
		r.do(err)
		if err := r.Delete(t.Context(), r.path("app"), DeleteOptions{}); !fault.Is(err, fault.Unavailable) {
			t.Errorf("while a push takes long: %v", err)
		}
		ended := make(chan error)
		go func() { ended <- r.Delete(t.Context(), r.path("app"), DeleteOptions{Force: true}) }()
		time.Sleep(movePatience / 2)
		if _, err := os.Stat(common); err != nil {
			t.Errorf("the repository was moved during a push: %v", err)
		}
		push.Leave()
		r.do(<-ended)
		if _, err := os.Stat(common); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after the deletion: %v", err)
		}
		r.Close()
	})
}
