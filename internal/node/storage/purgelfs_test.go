package storage_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// filesOf returns the files below the root that have the ID of an object in their names.
func (l large) filesOf(o lfs.Object) (found []string) {
	l.t.Helper()
	err := filepath.WalkDir(l.dir, func(path string, _ os.DirEntry, err error) error {
		if strings.Contains(path, o.OID.String()) {
			found = append(found, strings.TrimPrefix(path, l.dir+"/"))
		}
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return found
}

// TestPurgeLFS purges an object of a repository, its fork, and the pool, also parts and damaged files of it. A
// repository that is not a fork keeps it.
func TestPurgeLFS(t *testing.T) {
	t.Parallel()
	l := newLarge(t, storage.Options{Runner: newRunner(t)})
	r := l.root
	app := gittest.InitAt(t, filepath.Join(r.dir, "app.git"), "--bare")
	app.Git("update-ref", "refs/heads/main", app.Commit("x").String())
	r.repo("other.git", "text")
	content, kept := []byte("a secret in a large file"), []byte("another one")
	secret, public := l.upload(r.path("app"), content), l.upload(r.path("app"), kept)
	l.upload(r.path("other"), content)
	pointer := func(o lfs.Object) git.ObjectID {
		return app.Blob(fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", o.OID, o.Size))
	}
	blob := pointer(secret)
	app.Git("update-ref", "refs/heads/leak", app.CommitTree("leak", "100644 blob "+blob.String()+"\tfile\n").String())
	app.Git("update-ref", "refs/tags/public", pointer(public).String())
	r.fork("app", "fork")
	o := places.PurgeOptions{LFS: []lfs.OID{secret.OID}}
	purge := func(o places.PurgeOptions) (storage.PurgeReceipt, error) {
		return r.Purge(t.Context(), r.path("app"), o)
	}
	for _, ref := range []string{"app.git", "fork.git"} {
		_, err := purge(o)
		if !fault.Is(err, fault.Precondition) || !strings.Contains(err.Error(), "refs/heads/leak") ||
			ref == "fork.git" && !strings.Contains(err.Error(), "fork.git refs/heads/leak") {
			t.Fatalf("purge of what %s reaches: %v", ref, err)
		}
		gittest.At(t, filepath.Join(r.dir, ref)).Git("update-ref", "-d", "refs/heads/leak")
	}
	if _, err := purge(places.PurgeOptions{LFS: []lfs.OID{{1}}}); !fault.Is(err, fault.NotFound) {
		t.Errorf("purge of an unknown object: %v", err)
	}
	receipt, err := purge(places.PurgeOptions{IDs: []git.ObjectID{blob}})
	if err != nil || len(receipt.Notes) != 1 || !strings.Contains(receipt.Notes[0], secret.OID.String()) {
		t.Errorf("the receipt of a purged pointer file has the notes %q, %v", receipt.Notes, err)
	}
	for _, path := range []string{"app.git/lfs/damaged/", ".packhorse/lfs/damaged/"} {
		r.do(os.MkdirAll(filepath.Join(r.dir, path), 0o700))
		r.do(os.WriteFile(filepath.Join(r.dir, path, secret.OID.String()), content[1:], 0o600))
	}
	receipt, err = purge(o)
	if err != nil || receipt.Hidden.IsZero() || len(receipt.Files) != 4 || len(receipt.Notes) != 1 ||
		!strings.Contains(receipt.Notes[0], "remains in the pool") {
		t.Fatalf("%+v, %v, want 4 files, and a note about the pool", receipt, err)
	}
	if files := l.filesOf(secret); len(files) != 2 || !strings.HasPrefix(files[1], "other.git/") {
		t.Errorf("files are left: %q, want those of the pool and the other repository", files)
	}
	for _, path := range []string{"app", "fork"} {
		states := append(l.states(r.path(path), false, secret, public), l.states(r.path(path), true, secret)...)
		if states[0].State != lfs.Missing || path == "app" && states[1].State != lfs.Present ||
			states[2].State != lfs.Refused || !fault.Is(states[2].Err, fault.Denied) {
			t.Errorf("%s: states %+v", path, states)
		}
		if _, _, err := l.download(r.path(path), lfs.Download{Object: secret, Length: -1}); !fault.Is(err, fault.NotFound) {
			t.Errorf("%s: download: %v", path, err)
		}
		_, _, err := l.LFSUpload(t.Context(), r.path(path), node.Session{}, lfs.Upload{Object: secret},
			bytes.NewReader(content))
		if !fault.Is(err, fault.Denied) {
			t.Errorf("%s: upload: %v", path, err)
		}
		if _, _, err := l.LFSPart(t.Context(), r.path(path), node.Session{}, secret); !fault.Is(err, fault.Denied) {
			t.Errorf("%s: size of the part: %v", path, err)
		}
	}
	if found, err := r.FindCopies(t.Context(), r.path("app"), o); err != nil || len(found.Copies) > 0 {
		t.Errorf("FindCopies() = %+v, %v", found, err)
	}
	dir := filepath.Join(r.dir, "fork.git/lfs/objects", secret.OID.String()[:2], secret.OID.String()[2:4])
	r.do(os.MkdirAll(dir, 0o700))
	r.do(os.WriteFile(filepath.Join(dir, secret.OID.String()), content, 0o600))
	if found, err := r.FindCopies(t.Context(), r.path("app"), o); err != nil || len(found.Copies) != 1 {
		t.Errorf("a file that somebody puts back: FindCopies() = %+v, %v", found, err)
	}
	if _, err := purge(o); err != nil {
		t.Error(err)
	}
	r.do(os.RemoveAll(filepath.Join(r.dir, "other.git")))
	if receipt, err := purge(o); err != nil || len(receipt.Notes) > 0 || len(l.filesOf(secret)) > 0 {
		t.Errorf("after the removal of the other repository: %+v, %v, %q", receipt, err, l.filesOf(secret))
	}
	r.do(r.Lift(t.Context(), r.path("app"), o))
	l.upload(r.path("app"), content)
}

// slowly calls a function before the last bytes of a reader.
type slowly struct {
	*bytes.Reader
	before func()
}

func (s *slowly) Read(b []byte) (int, error) {
	if s.Len() < 10 && s.before != nil {
		s.before()
		s.before = nil
	}
	return s.Reader.Read(b[:min(len(b), max(s.Len()-5, 5))])
}

// TestPurgeDuringUpload purges an object while it is uploaded again, and changes other settings during another upload.
func TestPurgeDuringUpload(t *testing.T) {
	t.Parallel()
	l := newLarge(t, storage.Options{Runner: newRunner(t)})
	r := l.root
	r.repo("app.git", "text")
	content := []byte("a secret in a large file")
	secret := l.upload(r.path("app"), content)
	r.do(os.RemoveAll(filepath.Join(r.dir, "app.git/lfs/objects")))
	r.do(os.RemoveAll(filepath.Join(r.dir, ".packhorse/lfs", secret.OID.String()[:2])))
	_, _, err := l.LFSUpload(t.Context(), r.path("app"), node.Session{}, lfs.Upload{Object: secret},
		&slowly{bytes.NewReader(content), func() {
			_, err := r.Configure(t.Context(), r.path("app"), func(s places.Settings) error {
				return s.Purge(places.PurgeOptions{LFS: []lfs.OID{secret.OID}}, nil)
			})
			r.do(err)
		}})
	if !fault.Is(err, fault.Denied) || len(l.filesOf(secret)) > 0 {
		t.Errorf("an upload during a purge: %v; files %q", err, l.filesOf(secret))
	}
	other := []byte("other content of a large file")
	_, _, err = l.LFSUpload(t.Context(), r.path("app"), node.Session{}, lfs.Upload{Object: objectOf(other)},
		&slowly{bytes.NewReader(other), func() {
			_, err := r.Configure(t.Context(), r.path("app"), func(s places.Settings) error {
				s[places.DescriptionKey] = []string{"changed"}
				return nil
			})
			r.do(err)
		}})
	if err != nil {
		t.Errorf("an upload while a setting changes: %v", err)
	}
}
