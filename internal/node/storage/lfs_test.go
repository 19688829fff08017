package storage_test

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// large is a node with LFS objects.
type large struct{ *root }

func newLarge(t *testing.T, o storage.Options, repositories ...string) large {
	t.Helper()
	if o.LFS == nil {
		o.LFS = &objects.Options{MinFree: -1}
	}
	if o.Pushes == nil {
		o.Pushes = newPushServer(t)
	}
	l := large{newRoot(t, o)}
	for _, name := range repositories {
		l.repo(name+".git", "text")
	}
	return l
}

// links returns the number of names of a file.
func links(info os.FileInfo) uint64 { return uint64(info.Sys().(*syscall.Stat_t).Nlink) }

func objectOf(content []byte) lfs.Object {
	return lfs.Object{OID: sha256.Sum256(content), Size: int64(len(content))}
}

// upload uploads content and expects success.
func (l large) upload(path git.RepoPath, content []byte) lfs.Object {
	l.t.Helper()
	o := objectOf(content)
	size, outcome, err := l.LFSUpload(l.t.Context(), path, node.Session{}, lfs.Upload{Object: o}, bytes.NewReader(content))
	if err != nil || size != o.Size || outcome.LFS.Bytes != o.Size || outcome.Command != node.CommandLFSUpload {
		l.t.Fatalf("LFSUpload of %d bytes = %d, %+v, %v", o.Size, size, outcome, err)
	}
	return o
}

// states returns the states of objects before a download or an upload.
func (l large) states(path git.RepoPath, upload bool, o ...lfs.Object) []lfs.Status {
	l.t.Helper()
	states, _, err := l.LFSBatch(l.t.Context(), path, node.Session{}, lfs.Batch{Upload: upload, Objects: o})
	if err != nil {
		l.t.Fatal(err)
	}
	return states
}

// download returns what a client receives.
func (l large) download(path git.RepoPath, d lfs.Download) (*answer, node.Outcome, error) {
	l.t.Helper()
	var a answer
	o, err := l.LFSDownload(l.t.Context(), path, node.Session{}, d, &a)
	return &a, o, err
}

func TestLFSObjects(t *testing.T) {
	t.Parallel()
	l := newLarge(t, storage.Options{}, "app", "other")
	app, other := l.path("app"), l.path("other")
	content := bytes.Repeat([]byte("packhorse"), 100_000)
	absent := objectOf([]byte("absent"))
	o := l.upload(app, content)
	states := l.states(app, true, absent, o, lfs.Object{OID: o.OID, Size: 1})
	if states[0].State != lfs.Missing || states[1].State != lfs.Present || states[2].State != lfs.Missing {
		t.Errorf("states before an upload = %v, want missing, present, missing", states)
	}
	states = l.states(app, false, absent, o, lfs.Object{OID: o.OID, Size: 1})
	if states[0].State != lfs.Missing || states[1].State != lfs.Present || states[2].State != lfs.Refused ||
		!fault.Is(states[2].Err, fault.Invalid) {
		t.Errorf("states before a download = %v, want missing, present, refused", states)
	}
	b := lfs.Batch{Objects: []lfs.Object{absent, {OID: o.OID, Size: 1}}}
	_, outcome, err := l.LFSBatch(t.Context(), app, node.Session{}, b)
	if err != nil || outcome.LFS.Objects != 2 || outcome.LFS.Refused != 1 || outcome.Reason != "invalid" {
		t.Errorf("outcome of a batch with another size = %+v, %v, want one refusal", outcome, err)
	}
	for _, d := range []lfs.Download{
		{Object: o, Length: -1}, {Object: o, Offset: 1, Length: -1}, {Object: o, Offset: o.Size, Length: -1},
		{Object: o, Offset: 5, Length: 100}, {Object: o, Length: 0}, {Object: o, Offset: o.Size - 1, Length: 100},
	} {
		want := content[d.Offset:]
		if d.Length >= 0 {
			want = want[:min(int64(len(want)), d.Length)]
		}
		a, outcome, err := l.download(app, d)
		if err != nil || !bytes.Equal(a.Bytes(), want) || outcome.LFS.Bytes != int64(len(want)) ||
			outcome.LFS.Cache != "hit" {
			t.Errorf("download %d+%d = %d bytes, %+v, %v, want %d bytes", d.Offset, d.Length, a.Len(), outcome, err, len(want))
		}
	}
	if _, _, err := l.download(app, lfs.Download{Object: o, Offset: o.Size + 1}); !fault.Is(err, fault.Invalid) {
		t.Errorf("download after the end: %v, want Invalid", err)
	}
	// Another repository learns nothing, and has to send all bytes.
	if states := l.states(other, true, o); states[0].State != lfs.Missing {
		t.Errorf("state in another repository = %v, want missing", states[0])
	}
	if _, _, err := l.download(other, lfs.Download{Object: o, Length: -1}); !fault.Is(err, fault.NotFound) {
		t.Errorf("download from another repository: %v, want NotFound", err)
	}
	if size, _, err := l.LFSPart(t.Context(), other, node.Session{}, o); size != 0 || err != nil {
		t.Errorf("LFSPart in another repository = %d, %v, want 0", size, err)
	}
	l.upload(other, content)
	if info, err := os.Stat(l.objectPath("app", o)); err != nil || links(info) != 3 {
		t.Errorf("the file of the object: %v, want one with 3 links", err)
	}
	l.noParts()
}

// objectPath returns the path of the file of an object.
func (l large) objectPath(name string, o lfs.Object) string {
	id := o.OID.String()
	return filepath.Join(l.dir, name+".git/lfs/objects", id[:2], id[2:4], id)
}

// noParts expects that no part of an upload is left.
func (l large) noParts() {
	l.t.Helper()
	if left, err := os.ReadDir(filepath.Join(l.dir, ".packhorse/lfs/incoming")); err != nil || len(left) > 0 {
		l.t.Errorf("parts of uploads = %v, %v, want none", left, err)
	}
}

func TestLFSUploadContinues(t *testing.T) {
	t.Parallel()
	l := newLarge(t, storage.Options{}, "app")
	app := l.path("app")
	content := bytes.Repeat([]byte("0123456789"), 100_000)
	o := objectOf(content)
	lost := errors.New("connection lost")
	sent := int64(0)
	for i := int64(1); i <= 9; i++ {
		end := i * 100_001
		body := io.MultiReader(bytes.NewReader(content[sent:end]), iotest.ErrReader(lost))
		size, outcome, err := l.LFSUpload(t.Context(), app, node.Session{}, lfs.Upload{Object: o, Offset: sent}, body)
		if size != end || !fault.Is(err, fault.Cancelled) || outcome.Reason != "cancelled" {
			t.Fatalf("upload cut after %d bytes = %d, %+v, %v", end, size, outcome, err)
		}
		if sent, _, err = l.LFSPart(t.Context(), app, node.Session{}, o); sent != end || err != nil {
			t.Fatalf("LFSPart = %d, %v, want %d", sent, err, end)
		}
	}
	if states := l.states(app, true, o); states[0].State != lfs.Missing {
		t.Errorf("state of an object with a part = %v, want missing", states[0])
	}
	size, _, err := l.LFSUpload(t.Context(), app, node.Session{}, lfs.Upload{Object: o, Offset: sent, Partial: true},
		bytes.NewReader(content[sent:]))
	if size != o.Size || err != nil {
		t.Fatalf("the last part: %d, %v, want %d", size, err, o.Size)
	}
	if a, _, err := l.download(app, lfs.Download{Object: o, Length: -1}); err != nil || !bytes.Equal(a.Bytes(), content) {
		t.Errorf("download: %v, want the content", err)
	}
	l.noParts()
}

// Objects outside the root are not served, whichever directory is a link.
func TestLFSOutside(t *testing.T) {
	t.Parallel()
	content := []byte("secret")
	o := objectOf(content)
	id := o.OID.String()
	for _, link := range []string{"lfs", "lfs/objects", "lfs/objects/" + id[:2], "lfs/objects/" + id[:2] + "/" + id[2:4]} {
		l, outside := newLarge(t, storage.Options{}, "app"), t.TempDir()
		file := l.objectPath("app", o)
		dir := filepath.Join(l.dir, "app.git", link)
		below, err := filepath.Rel(dir, file)
		l.do(errors.Join(err, os.MkdirAll(filepath.Dir(dir), 0o755), os.Symlink(outside, dir)))
		target := filepath.Join(outside, below)
		l.do(errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), os.WriteFile(target, content, 0o444)))
		if a, _, err := l.download(l.path("app"), lfs.Download{Object: o, Length: -1}); err == nil || a.Len() > 0 {
			t.Errorf("link %s: downloaded %q, %v, want an error", link, a, err)
		}
		for _, b := range []lfs.Batch{{Objects: []lfs.Object{o}}, {Upload: true, Objects: []lfs.Object{o}}} {
			states, _, err := l.LFSBatch(t.Context(), l.path("app"), node.Session{}, b)
			if err == nil && states[0].State != lfs.Missing {
				t.Errorf("link %s, upload = %t: state %v, want missing", link, b.Upload, states[0].State)
			}
		}
		l.do(os.RemoveAll(filepath.Join(outside, "objects")))
		other := []byte("other")
		_, _, err = l.LFSUpload(t.Context(), l.path("app"), node.Session{}, lfs.Upload{Object: objectOf(other)},
			bytes.NewReader(other))
		if link == "lfs" && !fault.Is(err, fault.Denied) {
			t.Errorf("upload through the link %s = %v, want Denied", link, err)
		}
	}
}

// A repository that is deleted during an upload does not come back, and the upload fails. Downloads continue.
func TestLFSDuringDeletion(t *testing.T) {
	t.Parallel()
	l := newLarge(t, storage.Options{}, "app")
	app := l.path("app")
	content := bytes.Repeat([]byte("0123456789"), 100_000)
	there := l.upload(app, content)
	o := objectOf(content[1:])
	first, rest := bytes.NewReader(content[1:500_000]), bytes.NewReader(content[500_000:])
	deletes := readerFunc(func([]byte) (int, error) {
		return 0, cmp.Or(l.Delete(t.Context(), app, places.DeleteOptions{}), io.EOF)
	})
	body := io.MultiReader(first, deletes, rest)
	size, outcome, err := l.LFSUpload(t.Context(), app, node.Session{}, lfs.Upload{Object: o}, body)
	if size != 0 || !fault.Is(err, fault.NotFound) || outcome.Reason != "not_found" {
		t.Errorf("upload to a repository that is deleted: %d, %+v, %v, want NotFound", size, outcome, err)
	}
	if _, err := os.Stat(filepath.Join(l.dir, "app.git")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory of the repository: %v, want none", err)
	}
	l.noParts()
	l.repo("app.git", "another")
	if states := l.states(app, false, there, o); states[0].State != lfs.Missing || states[1].State != lfs.Missing {
		t.Errorf("states in a new repository of the same name = %v, want missing", states)
	}

	l.upload(app, content)
	response := &deletingAnswer{delete: func() error { return l.Delete(t.Context(), app, places.DeleteOptions{}) }}
	_, err = l.LFSDownload(t.Context(), app, node.Session{}, lfs.Download{Object: there, Length: -1}, response)
	if err != nil || response.err != nil || !bytes.Equal(response.Bytes(), content) {
		t.Errorf("download from a repository that is deleted: %v, %v, %d bytes", err, response.err, response.Len())
	}
}

// deletingAnswer deletes something before the content is sent.
type deletingAnswer struct {
	answer
	delete func() error
	err    error
}

func (a *deletingAnswer) StartBulk(bool) error {
	a.err = a.delete()
	return nil
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestWithoutLFS(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{})
	r.repo("app.git", "text")
	if _, _, err := r.LFSBatch(t.Context(), r.path("app"), node.Session{}, lfs.Batch{}); !fault.Is(err, fault.NotFound) {
		t.Errorf("LFSBatch without LFS: %v, want NotFound", err)
	}
}

// TestLFSWithoutPushes refuses changes where pushes are refused. Objects and locks that are there can be read.
func TestLFSWithoutPushes(t *testing.T) {
	t.Parallel()
	l := newLarge(t, storage.Options{}, "app")
	path, content := l.path("app"), []byte("content")
	o := l.upload(path, content)
	made, _, err := l.LFSLocks(t.Context(), path, node.Session{}, lfs.LockRequest{Caller: "ann", Path: "a"})
	l.do(err)
	check := func(what string, l large) {
		t.Helper()
		upload := lfs.Upload{Object: objectOf([]byte("other"))}
		_, _, batch := l.LFSBatch(t.Context(), path, node.Session{}, lfs.Batch{Upload: true, Objects: []lfs.Object{o}})
		_, _, put := l.LFSUpload(t.Context(), path, node.Session{}, upload, bytes.NewReader([]byte("other")))
		_, _, part := l.LFSPart(t.Context(), path, node.Session{}, upload.Object)
		_, _, lock := l.LFSLocks(t.Context(), path, node.Session{}, lfs.LockRequest{Caller: "ann", Path: "b"})
		_, _, unlock := l.LFSLocks(t.Context(), path, node.Session{}, lfs.LockRequest{Action: lfs.Unlock, Caller: "ann",
			ID: made.Locks[0].ID})
		for call, err := range map[string]error{"LFSBatch": batch, "LFSUpload": put, "LFSPart": part, "lock": lock,
			"unlock": unlock} {
			if !fault.Is(err, fault.Denied) {
				t.Errorf("%s: %s: %v, want Denied", what, call, err)
			}
		}
		a, _, err := l.download(path, lfs.Download{Object: o, Length: -1})
		if err != nil || !bytes.Equal(a.Bytes(), content) {
			t.Errorf("%s: download = %q, %v, want %q", what, a, err, content)
		}
		list, _, err := l.LFSLocks(t.Context(), path, node.Session{}, lfs.LockRequest{Action: lfs.ListLocks, Caller: "ann"})
		if err != nil || len(list.Locks) != 1 {
			t.Errorf("%s: locks = %+v, %v, want one", what, list, err)
		}
	}
	check("push.enabled = false", large{newRoot(t, storage.Options{Root: l.dir, LFS: &objects.Options{MinFree: -1}})})
	config := filepath.Join(l.dir, "app.git", "config")
	text, err := os.ReadFile(config)
	l.do(err)
	l.do(os.WriteFile(config, append(text, "[http]\nreceivepack = false\n"...), 0o600))
	check("http.receivepack = false", l)
}
