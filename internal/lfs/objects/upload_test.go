package objects_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
)

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

// A client that connects again at once gets the number of bytes that have arrived.
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
