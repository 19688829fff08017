package objects_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
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

// Wrong content leaves nothing behind, except for the part of an upload that can continue.
func TestWrongContent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, objects.Options{MaxObject: 1 << 20})
	r := w.repository("app")
	content := random(300_000)
	o := objectOf(content)
	for _, c := range []struct {
		what    string
		upload  lfs.Upload
		content []byte
		kind    fault.Kind
		reason  string
		size    int64
	}{
		{"other content", lfs.Upload{Object: o}, random(300_001)[1:], fault.Invalid, "wrong_hash", 0},
		{"a byte too much", lfs.Upload{Object: o}, append(content[:o.Size:o.Size], 0), fault.Invalid, "wrong_length", 0},
		{"a smaller size", lfs.Upload{Object: lfs.Object{OID: o.OID, Size: 5}}, content[:5], fault.Invalid, "wrong_hash", 0},
		{"a larger size", lfs.Upload{Object: lfs.Object{OID: o.OID, Size: o.Size + 1}}, append(content[:o.Size:o.Size], 0),
			fault.Invalid, "wrong_hash", 0},
		{"no content", lfs.Upload{Object: o}, nil, fault.Invalid, "truncated", 0},
		{"a hole", lfs.Upload{Object: o, Offset: 1}, content[1:], fault.Exists, "exists", 0},
		{"a negative offset", lfs.Upload{Object: o, Offset: -1}, content, fault.Invalid, "invalid", 0},
		{"an offset after the end", lfs.Upload{Object: o, Offset: o.Size + 1}, nil, fault.Invalid, "invalid", 0},
		{"a large object", lfs.Upload{Object: lfs.Object{OID: o.OID, Size: 1<<20 + 1}}, content, fault.Invalid, "too_large",
			0},
	} {
		size, err := w.Upload(t.Context(), r, c.upload, bytes.NewReader(c.content))
		if size != c.size || !fault.Is(err, c.kind) || objects.Reason(err) != c.reason {
			t.Errorf("%s: Upload = %d, %v (%s), want %d, %s", c.what, size, err, objects.Reason(err), c.size, c.reason)
		}
		w.expectFiles(0, 0)
	}
	size, err := w.Upload(t.Context(), r, lfs.Upload{Object: o}, bytes.NewReader(content[:1000]))
	if size != 1000 || objects.Reason(err) != "truncated" {
		t.Errorf("a truncated upload: %d, %v, want 1000, truncated", size, err)
	}
	w.expectFiles(1, 0)
	size, err = w.Upload(t.Context(), r, lfs.Upload{Object: o, Offset: 900}, bytes.NewReader(content[900:]))
	if size != o.Size || err != nil {
		t.Errorf("the rest: %d, %v, want %d", size, err, o.Size)
	}
	w.expect(r, content)
	w.expectFiles(0, 2)
}

// An empty object, and one that fills buffers exactly.
func TestSizes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, objects.Options{})
	r := w.repository("app")
	for _, size := range []int{0, 1, 128 << 10, 128<<10 + 1, 256 << 10} {
		content := random(size)
		for range 2 { // the second time it exists
			if err := w.upload(r, content); err != nil {
				t.Errorf("%d bytes: %v", size, err)
			}
		}
		w.expect(r, content)
	}
	var total int64
	err := w.Walk(r, func(o lfs.Object, _ fs.FileInfo) error {
		total += o.Size
		return nil
	})
	if want := int64(0 + 1 + 128<<10 + 128<<10 + 1 + 256<<10); total != want || err != nil {
		t.Errorf("Walk: %d bytes, %v, want %d", total, err, want)
	}
}

// Of two uploads of one object none waits for the other, whichever ends first.
func TestTwoUploads(t *testing.T) {
	t.Parallel()
	content := random(500_000)
	for _, succeeds := range []bool{true, false} {
		w := newWorld(t, objects.Options{})
		r := w.repository("app")
		body, client := io.Pipe()
		first := make(chan error)
		go func() {
			_, err := w.Upload(t.Context(), r, lfs.Upload{Object: objectOf(content)}, body)
			first <- err
		}()
		if _, err := client.Write(content[:200_000]); err != nil {
			t.Fatal(err)
		}
		if err := w.upload(r, content); err != nil {
			t.Errorf("the second upload: %v", err)
		}
		w.expect(r, content)
		if succeeds {
			_, _ = client.Write(content[200_000:])
			client.Close()
		} else {
			client.CloseWithError(errors.New("connection lost"))
		}
		if err := <-first; succeeds != (err == nil) {
			t.Errorf("the first upload: %v, want success: %t", err, succeeds)
		}
		w.expect(r, content)
		if parts, others := w.files(); others != 2 || succeeds && parts != 0 {
			t.Errorf("%d parts and %d other files, want 0 and 2", parts, others)
		}
	}
}

// A client that lost its connection continues before the server notices that, but only if nothing arrives any more.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := worldIn(t, dir, objects.Options{})
		defer w.Close()
		r := w.repository("app")
		content := random(500_000)
		o := objectOf(content)
		body, client := io.Pipe()
		first := make(chan error)
		go func() {
			_, err := w.Upload(t.Context(), r, lfs.Upload{Object: o}, body)
			body.Close()
			first <- err
		}()
		if _, err := client.Write(content[:300_000]); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n, err := w.UploadedBytes(t.Context(), r, o); n != 0 || err != nil {
			t.Errorf("UploadedBytes during an upload = %d, %v, want 0", n, err)
		}
		time.Sleep(10 * time.Second)
		n, err := w.UploadedBytes(t.Context(), r, o)
		if n < 200_000 || n > 300_000 || err != nil {
			t.Errorf("UploadedBytes of a silent upload = %d, %v, want about 300000", n, err)
		}
		size, err := w.Upload(t.Context(), r, lfs.Upload{Object: o, Offset: n}, bytes.NewReader(content[n:]))
		if size != o.Size || err != nil {
			t.Errorf("the second upload: %d, %v, want %d", size, err, o.Size)
		}
		_, _ = client.Write(content[300_000:])
		client.Close()
		if err := <-first; !fault.Is(err, fault.Exists) {
			t.Errorf("the first upload: %v, want Exists", err)
		}
		w.expect(r, content)
		w.expectFiles(0, 2)
	})
}

// A client that closes its connection and asks at once gets what has arrived.
func TestAskAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := worldIn(t, dir, objects.Options{})
		defer w.Close()
		r := w.repository("app")
		content := random(500_000)
		o := objectOf(content)
		body, client := io.Pipe()
		go func() {
			_, _ = client.Write(content[:300_000])
			time.Sleep(300 * time.Millisecond)
			client.CloseWithError(errors.New("connection lost"))
		}()
		go func() { _, _ = w.Upload(t.Context(), r, lfs.Upload{Object: o}, body) }()
		synctest.Wait()
		if n, err := w.UploadedBytes(t.Context(), r, o); n != 300_000 || err != nil {
			t.Errorf("UploadedBytes = %d, %v, want 300000", n, err)
		}
	})
}

// All bytes arrived before the server was killed, but it did not finish: the client sends the last one again.
func TestCompletePart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, objects.Options{})
	r := w.repository("app")
	content := random(1000)
	o := objectOf(content)
	larger := lfs.Object{OID: o.OID, Size: o.Size + 1}
	if _, err := w.Upload(t.Context(), r, lfs.Upload{Object: larger, Partial: true},
		bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	n, err := w.UploadedBytes(t.Context(), r, o)
	if n != o.Size-1 || err != nil {
		t.Errorf("UploadedBytes = %d, %v, want %d", n, err, o.Size-1)
	}
	if _, err := w.Upload(t.Context(), r, lfs.Upload{Object: o, Offset: n}, bytes.NewReader(content[n:])); err != nil {
		t.Error(err)
	}
	w.expect(r, content)
	if n, err := w.UploadedBytes(t.Context(), r, o); n != o.Size || err != nil {
		t.Errorf("UploadedBytes of an object = %d, %v, want %d", n, err, o.Size)
	}
}

// A repository that is removed or renamed during an upload is not created again.
func TestRepositoryGoes(t *testing.T) {
	t.Parallel()
	content := random(200_000)
	for _, removed := range []bool{true, false} {
		w := newWorld(t, objects.Options{})
		r := w.repository("app")
		body, client := io.Pipe()
		done := make(chan error)
		go func() {
			_, err := w.Upload(t.Context(), r, lfs.Upload{Object: objectOf(content)}, body)
			done <- err
		}()
		if _, err := client.Write(content[:1]); err != nil {
			t.Fatal(err)
		}
		renamed := objects.Repository{Dir: r.Dir + "2", ID: r.ID}
		err := os.Rename(r.Dir, renamed.Dir)
		if removed {
			err = errors.Join(err, os.RemoveAll(renamed.Dir))
		}
		if err != nil {
			t.Fatal(err)
		}
		_, _ = client.Write(content[1:])
		client.Close()
		err = <-done
		if removed && !fault.Is(err, fault.NotFound) || !removed && err != nil {
			t.Errorf("removed: %t: %v", removed, err)
		}
		if _, err := os.Stat(r.Dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the directory of the repository: %v, want none", err)
		}
		if !removed {
			w.expect(renamed, content)
		}
		if err := w.upload(r, content); !fault.Is(err, fault.NotFound) {
			t.Errorf("upload to a missing repository: %v, want NotFound", err)
		}
	}
}

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

func TestExpiry(t *testing.T) {
	t.Parallel()
	w := newWorld(t, objects.Options{Expiry: time.Hour})
	r := w.repository("app")
	content := random(1000)
	o := objectOf(content)
	cut := io.MultiReader(bytes.NewReader(content[:500]), iotest.ErrReader(errors.New("connection lost")))
	if n, err := w.Upload(t.Context(), r, lfs.Upload{Object: o}, cut); n != 500 || !fault.Is(err, fault.Cancelled) {
		t.Fatalf("an interrupted upload: %d, %v", n, err)
	}
	w.ExpireParts(time.Now().Add(59 * time.Minute))
	if n, err := w.UploadedBytes(t.Context(), r, o); n != 500 || err != nil {
		t.Errorf("UploadedBytes before the expiry = %d, %v, want 500", n, err)
	}
	w.ExpireParts(time.Now().Add(61 * time.Minute))
	if n, err := w.UploadedBytes(t.Context(), r, o); n != 0 || err != nil {
		t.Errorf("UploadedBytes after the expiry = %d, %v, want 0", n, err)
	}
	w.expectFiles(0, 0)
	if err := w.upload(r, content); err != nil {
		t.Error(err)
	}
}

// The part of another process continues, after its content was read again. A damaged part is found.
func TestRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	content := random(300_000)
	o := objectOf(content)
	before := worldIn(t, dir, objects.Options{})
	r := before.repository("app")
	half := lfs.Upload{Object: o, Partial: true}
	for _, isDamaged := range []bool{true, false} {
		if n, err := before.Upload(t.Context(), r, half, bytes.NewReader(content[:150_000])); n != 150_000 || err != nil {
			t.Fatalf("half an upload: %d, %v", n, err)
		}
		after := worldIn(t, dir, objects.Options{})
		n, err := after.UploadedBytes(t.Context(), r, o)
		if n != 150_000 || err != nil {
			t.Errorf("UploadedBytes = %d, %v, want 150000", n, err)
		}
		if isDamaged {
			parts, _ := filepath.Glob(filepath.Join(dir, "pool/incoming/*"))
			if len(parts) != 1 {
				t.Fatalf("parts: %q, want one", parts)
			}
			if err := os.WriteFile(parts[0], make([]byte, n), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err = after.Upload(t.Context(), r, lfs.Upload{Object: o, Offset: n}, bytes.NewReader(content[n:]))
		if isDamaged != (objects.Reason(err) == "wrong_hash") || !isDamaged && err != nil {
			t.Errorf("the rest of a part: %v, want wrong_hash: %t", err, isDamaged)
		}
	}
	before.expect(r, content)
	before.expectFiles(0, 2)
}

func TestQuota(t *testing.T) {
	t.Parallel()
	w := newWorld(t, objects.Options{Quota: 1000})
	r := w.repository("app")
	if err := w.upload(r, random(600)); err != nil {
		t.Fatal(err)
	}
	if err := w.upload(r, random(500)); !fault.Is(err, fault.Full) || objects.Reason(err) != "quota" {
		t.Errorf("an upload above the quota: %v, want Full", err)
	}
	states, err := w.Check(t.Context(), r, lfs.Batch{Upload: true, Objects: []lfs.Object{objectOf(random(600)),
		objectOf(random(300)), objectOf(random(301)), objectOf(random(100))}})
	if err != nil || states[0].State != lfs.Present || states[1].State != lfs.Missing ||
		states[2].State != lfs.Refused || !fault.Is(states[2].Err, fault.Full) || states[3].State != lfs.Missing {
		t.Errorf("Check = %v, %v, want present, missing, refused, missing", states, err)
	}
	if n, reason := objects.Refusals(states); n != 1 || reason != "quota" {
		t.Errorf("Refusals = %d, %q, want 1, quota", n, reason)
	}
	if err := errors.Join(w.upload(r, random(600)), w.upload(r, random(400))); err != nil {
		t.Errorf("uploads within the quota: %v", err)
	}
	if err := w.upload(w.repository("other"), random(500)); err != nil {
		t.Errorf("upload to another repository: %v", err)
	}
	if used, err := w.Usage(t.Context(), r); used != 1000 || err != nil {
		t.Errorf("Usage = %d, %v, want 1000", used, err)
	}
}

// The reason for a batch is the most severe one of its objects, in any order.
func TestRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t, objects.Options{MinFree: 1 << 60, MaxObject: 100})
	states, err := w.Check(t.Context(), w.repository("app"), lfs.Batch{Upload: true, Objects: []lfs.Object{
		objectOf(random(101)), objectOf(random(10))}})
	if err != nil {
		t.Fatal(err)
	}
	tooLarge, full := states[0], states[1]
	wrong := lfs.Status{State: lfs.Refused, Err: fault.New(fault.Invalid, "another size")}
	down := lfs.Status{State: lfs.Refused, Err: fault.New(fault.Unavailable, "the origin is down")}
	for _, c := range []struct {
		states []lfs.Status
		n      uint32
		reason string
	}{
		{[]lfs.Status{{}, {State: lfs.Present}}, 0, ""},
		{[]lfs.Status{wrong, {}}, 1, "invalid"},
		{[]lfs.Status{wrong, tooLarge, {}, wrong}, 3, "too_large"},
		{[]lfs.Status{tooLarge, down, wrong}, 3, "unavailable"},
		{[]lfs.Status{tooLarge, full, down}, 3, "disk_full"},
	} {
		if n, reason := objects.Refusals(c.states); n != c.n || reason != c.reason {
			t.Errorf("Refusals(%v) = %d, %q, want %d, %q", c.states, n, reason, c.n, c.reason)
		}
	}
}

// Uploads leave space free.
func TestFloor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, objects.Options{MinFree: 1 << 60})
	r := w.repository("app")
	content := random(10)
	if err := w.upload(r, content); !fault.Is(err, fault.Full) || objects.Reason(err) != "disk_full" {
		t.Errorf("upload: %v, want Full", err)
	}
	states, err := w.Check(t.Context(), r, lfs.Batch{Upload: true, Objects: []lfs.Object{objectOf(content)}})
	if err != nil || states[0].State != lfs.Refused || !fault.Is(states[0].Err, fault.Full) {
		t.Errorf("Check = %v, %v, want refused", states, err)
	}
	w.expectFiles(0, 0)
}

// Uploads, interruptions, downloads and the removal of unused objects of the pool do not disturb each other.
func TestTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t, objects.Options{})
	contents := make([][]byte, 4)
	for i := range contents {
		contents[i] = random(100_000 + i)
	}
	repositories := []objects.Repository{w.repository("app"), w.repository("fork")}
	ctx, stop := context.WithCancel(t.Context())
	var gc, uploads sync.WaitGroup
	gc.Go(func() {
		for ctx.Err() == nil {
			err := w.WalkPool(func(o lfs.Object, links uint64) error {
				if links > 1 {
					return nil
				}
				return w.RemovePooled(o)
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
	for i := range 8 {
		uploads.Go(func() {
			choose := rand.New(rand.NewPCG(1, uint64(i)))
			for range 20 {
				content, r := contents[choose.IntN(len(contents))], repositories[choose.IntN(len(repositories))]
				o := objectOf(content)
				n, err := w.UploadedBytes(t.Context(), r, o)
				if err != nil {
					t.Error(err)
				}
				if n == o.Size {
					got, err := w.read(r, o)
					if !fault.Is(err, fault.NotFound) && !bytes.Equal(got, content) { // another one can have removed it
						t.Errorf("read %d bytes, %v", len(got), err)
					}
					if err := w.Remove(r, o); err != nil {
						t.Error(err)
					}
					continue
				}
				end := n + choose.Int64N(o.Size-n+1)
				u := lfs.Upload{Object: o, Offset: n, Partial: true}
				size, err := w.Upload(t.Context(), r, u, bytes.NewReader(content[n:end]))
				switch {
				case err == nil:
				case fault.Is(err, fault.Exists) || n > 0 && fault.Is(err, fault.Invalid): // another upload was faster
				default:
					t.Errorf("Upload of %d-%d = %d, %v", n, end, size, err)
				}
			}
		})
	}
	uploads.Wait()
	stop()
	gc.Wait()
	for _, r := range repositories {
		for _, content := range contents {
			if err := w.upload(r, content); err != nil {
				t.Error(err)
			}
			w.expect(r, content)
		}
	}
	if parts, _ := w.files(); parts != 0 {
		t.Errorf("%d parts are left, want none", parts)
	}
}

// A batch of 10,000 objects that are all there.
func BenchmarkCheck(b *testing.B) {
	dir := b.TempDir()
	s := objects.New(objects.Options{Dir: filepath.Join(dir, "pool")})
	defer s.Close()
	r := objects.Repository{Dir: filepath.Join(dir, "app"), ID: "app"}
	batch := lfs.Batch{Objects: make([]lfs.Object, 10_000)}
	for i := range batch.Objects {
		o := objectOf(fmt.Append(nil, i))
		o.Size = 0
		batch.Objects[i] = o
		id := o.OID.String()
		file := filepath.Join(r.Dir, "lfs/objects", id[:2], id[2:4], id)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o444)); err != nil {
			b.Fatal(err)
		}
	}
	for _, batch.Upload = range []bool{false, true} {
		b.Run(fmt.Sprintf("upload=%t", batch.Upload), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				states, err := s.Check(b.Context(), r, batch)
				if err != nil || states[9_999].State != lfs.Present {
					b.Fatal(states[9_999], err)
				}
			}
		})
	}
}

// An object of 64 MiB.
func BenchmarkUpload(b *testing.B) {
	dir := b.TempDir()
	s := objects.New(objects.Options{Dir: filepath.Join(dir, "pool")})
	defer s.Close()
	r := objects.Repository{Dir: b.TempDir(), ID: "app"}
	content := random(64 << 20)
	o := objectOf(content)
	b.SetBytes(o.Size)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Upload(b.Context(), r, lfs.Upload{Object: o}, bytes.NewReader(content)); err != nil {
			b.Fatal(err)
		}
	}
}
