package objects_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
)

// checkNoObject fails the test unless all methods agree that a repository does not have an object.
func (w *careWorld) checkNoObject(r objects.Repository, o lfs.Object) {
	w.t.Helper()
	for _, isUpload := range []bool{false, true} {
		if state := w.state(r, o, isUpload); state != lfs.Missing {
			w.t.Errorf("Check with upload = %t: state %v, want missing", isUpload, state)
		}
	}
	if _, err := w.Open(r, o); !fault.Is(err, fault.NotFound) {
		w.t.Errorf("Open = %v, want NotFound", err)
	}
	if n, err := w.UploadedBytes(w.t.Context(), r, o); n != 0 || err != nil {
		w.t.Errorf("UploadedBytes = %d, %v, want none", n, err)
	}
	w.do(w.Walk(r, func(found lfs.Object, _ fs.FileInfo) error {
		w.t.Errorf("Walk found %s", found.OID)
		return nil
	}))
	if err := w.Verify(w.t.Context(), r, o, nil); err != nil {
		w.t.Errorf("Verify = %v, want nothing to verify", err)
	}
	w.Touch(r, o, time.Now())
	if removed := w.collect(r); removed != 0 {
		w.t.Errorf("a collection removed %d objects, want none", removed)
	}
}

// TestLinks has a link to a directory with the right object instead of each part of an object's path. It is not
// followed, and its target does not change.
func TestLinks(t *testing.T) {
	t.Parallel()
	const content = "behind a link"
	o := object(content)
	for depth, part := range []string{"ab", "ab/cd", "ab/cd/OID"} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			w := newCareWorld(t, objects.Options{})
			r, outside := w.repository("app"), w.repository("outside")
			w.do(w.upload(w.repository("other"), content)) // so that the pool has it
			w.do(os.MkdirAll(filepath.Dir(w.file(outside, o)), 0o755))
			w.do(os.WriteFile(w.file(outside, o), []byte(content), 0o644))
			w.age(outside, o)
			before, err := os.Lstat(w.file(outside, o))
			w.do(err)
			link, target := w.file(r, o), w.file(outside, o)
			for range 2 - depth {
				link, target = filepath.Dir(link), filepath.Dir(target)
			}
			w.do(errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink(target, link)))
			w.checkNoObject(r, o)
			if depth < 2 { // if the link is the file itself, Remove removes the link
				w.do(w.Remove(r, o))
			}
			isLinked, linkErr := w.Link(r, o)
			uploadErr := w.upload(r, content)
			if part == "ab/cd/OID" {
				if !isLinked || linkErr != nil || uploadErr != nil || w.state(r, o, false) != lfs.Present {
					t.Errorf("Link = %t, %v and Upload = %v, want the object instead of the link", isLinked, linkErr, uploadErr)
				}
			} else {
				for name, err := range map[string]error{"Link": linkErr, "Upload": uploadErr} {
					if !fault.Is(err, fault.Corrupt) || !strings.Contains(fault.Message(err), "symbolic link") ||
						!strings.Contains(err.Error(), w.file(r, o)) {
						t.Errorf("%s = %v, want an error that names the problem and the path", name, err)
					}
				}
				if state := w.state(r, o, false); state != lfs.Missing {
					t.Errorf("after the upload: state %v, want missing", state)
				}
			}
			after, err := os.Lstat(w.file(outside, o))
			if err != nil || !after.ModTime().Equal(before.ModTime()) || !os.SameFile(after, before) {
				t.Errorf("the file behind the link: %v, %v, want no change", after, err)
			}
			if entries, err := os.ReadDir(filepath.Dir(w.file(outside, o))); err != nil || len(entries) != 1 {
				t.Errorf("the directory behind the link has %v, %v, want one file", entries, err)
			}
		})
	}
}

// TestNotRegular has something else with the name of an object's file. Nothing waits for it.
func TestNotRegular(t *testing.T) {
	t.Parallel()
	const content = "content"
	o := object(content)
	for name, make := range map[string]func(path string) error{
		"fifo": func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"socket": func(path string) error {
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			defer syscall.Close(fd)
			dir, err := os.MkdirTemp("", "") // a path in a socket's address is short
			if err != nil {
				return err
			}
			defer os.RemoveAll(dir)
			return errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: dir + "/s"}), os.Rename(dir+"/s", path))
		},
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newCareWorld(t, objects.Options{})
			r := w.repository("app")
			w.do(errors.Join(os.MkdirAll(filepath.Dir(w.file(r, o)), 0o755), make(w.file(r, o))))
			w.checkNoObject(r, o)
			err := w.upload(r, content)
			if name == "directory" {
				if err == nil {
					t.Error("Upload replaced a directory, want an error")
				}
				return
			}
			if err != nil || w.state(r, o, false) != lfs.Present {
				t.Errorf("Upload = %v, want the object", err)
			}
		})
	}
}

// TestLinkedDirectory has all objects behind a link. They are served, and not collected. Without what the link names,
// they are unavailable, and not missing.
func TestLinkedDirectory(t *testing.T) {
	t.Parallel()
	const content = "content"
	o := object(content)
	w := newCareWorld(t, objects.Options{})
	r, other := w.repository("app"), w.repository("other")
	w.do(w.upload(other, content))
	w.age(other, o)
	w.do(errors.Join(os.Mkdir(filepath.Join(r.Dir, "lfs"), 0o755),
		os.Symlink(filepath.Join(other.Dir, "lfs/objects"), filepath.Join(r.Dir, "lfs/objects"))))
	if state := w.state(r, o, false); state != lfs.Present {
		t.Errorf("state %v, want present", state)
	}
	if _, err := w.NewCollector(r, time.Now()); !errors.Is(err, objects.ErrLinked) {
		t.Errorf("NewCollector = %v, want ErrLinked", err)
	}
	w.do(os.RemoveAll(filepath.Join(other.Dir, "lfs")))
	_, checkErr := w.Check(t.Context(), r, lfs.Batch{Objects: []lfs.Object{o}})
	_, openErr := w.Open(r, o)
	for call, err := range map[string]error{"Check": checkErr, "Open": openErr, "Upload": w.upload(r, content)} {
		if !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s = %v, want Unavailable", call, err)
		}
	}
}
