package objects_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
)

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
