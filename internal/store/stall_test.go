package store

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
)

// slowUploads is a bucket whose uploads read one byte in an interval, and then do not end; with interval 0 they read
// none.
type slowUploads struct {
	*buckettest.Memory
	interval time.Duration
	ends     bool
}

func (b *slowUploads) Put(ctx context.Context, key string, body io.ReaderAt, size int64, sum [32]byte) error {
	for i := int64(0); b.interval > 0 && i < size; i++ {
		if err := retry.Sleep(ctx, b.interval); err != nil {
			return err
		}
		if _, err := body.ReadAt(make([]byte, 1), i); err != nil {
			return err
		}
	}
	if b.ends {
		return b.Memory.Put(ctx, key, body, size, sum)
	}
	<-ctx.Done()
	return ctx.Err()
}

// An upload has no limit as long as it makes progress, and otherwise the push ends soon.
func TestUploadsEndWithoutProgress(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		uploads slowUploads
		isDown  bool
		max     time.Duration // zero: the push succeeds
	}{
		{"stalled", slowUploads{}, false, putStall + 2*time.Second},
		{"stalled, store is down", slowUploads{}, true, monitorInterval*5/4 + downPutStall},
		{"stalled after a while", slowUploads{interval: putStall / 2}, false, 20*putStall + 2*time.Second},
		{"slow", slowUploads{interval: putStall / 2, ends: true}, false, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBucket(t)
				create(t, newNode(t, b), "x")
				test.uploads.Memory = b
				s := newNode(t, b, func(o *Options) { o.Bucket = &test.uploads })
				took, err := pushSlowly(t, s, test.isDown, b)
				if test.max == 0 && err != nil {
					t.Errorf("Commit = %v, want success", err)
				}
				isRefused := fault.Is(err, fault.Unavailable) && fault.RetryAfter(err) > 0
				if test.max > 0 && (!isRefused || took > test.max) {
					t.Errorf("Commit took %v, %v, want unavailable with a retry hint within %v", took, err, test.max)
				}
			})
		})
	}
}

// slowFinish is a bucket that reads the end of a file, and then needs a while before the upload succeeds.
type slowFinish struct {
	bucket.Bucket
	pause time.Duration
}

func (b slowFinish) Put(ctx context.Context, _ string, body io.ReaderAt, size int64, _ [32]byte) error {
	if _, err := body.ReadAt(make([]byte, 1), size-1); err != nil {
		return err
	}
	return retry.Sleep(ctx, b.pause)
}

type zeros struct{}

func (zeros) ReadAt(p []byte, _ int64) (int, error) { return len(p), nil }

// After the last byte of a large file was read, the storage may take minutes to put its parts together.
func TestUploadsMayFinishSlowly(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		size    int64
		pause   time.Duration
		isStuck bool
	}{
		{1 << 10, 50 * time.Second, false},
		{1 << 10, 2 * time.Minute, true},
		{10 << 30, 10 * time.Minute, false},
		{10 << 30, 20 * time.Minute, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := quickBucket{slowFinish{pause: test.pause}, func() bool { return false }}
			err := b.Put(t.Context(), "key", zeros{}, test.size, [32]byte{})
			if isStuck := fault.Is(err, fault.Unavailable); isStuck != test.isStuck || !isStuck && err != nil {
				t.Errorf("Put of %d bytes that finishes after %v = %v, want an error: %t", test.size, test.pause, err,
					test.isStuck)
			}
		})
	}
}

// failingUpload is a bucket whose first upload fails.
type failingUpload struct {
	*buckettest.Memory
	failed atomic.Bool
}

func (b *failingUpload) Put(ctx context.Context, key string, body io.ReaderAt, size int64, sum [32]byte) error {
	if b.failed.CompareAndSwap(false, true) {
		return fault.New(fault.Unavailable, "503")
	}
	return b.Memory.Put(ctx, key, body, size, sum)
}

// An upload that fails while Git runs is repeated.
func TestFailedUploadIsRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t)
		create(t, newNode(t, b), "x")
		s := newNode(t, b, func(o *Options) { o.Bucket = &failingUpload{Memory: b} })
		if _, err := pushSlowly(t, s, false, b); err != nil {
			t.Errorf("Commit = %v, want success", err)
		}
	})
}

// pushSlowly pushes a pack of a few bytes without Git.
func pushSlowly(t *testing.T, s *Store, isDown bool, b *buckettest.Memory) (took time.Duration, err error) {
	p := newPusher(t, s, "x")
	objects := t.TempDir()
	if err := os.Mkdir(filepath.Join(objects, "pack"), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, ext := range []string{".pack", ".idx"} {
		write(t, filepath.Join(objects, "pack", "pack-1"+ext), "PACK and a few more bytes")
	}
	ctx, cancel := context.WithCancel(s.ctx)
	push := &shadow{place: p.place, base: p.place.known(), ctx: ctx, cancel: cancel, done: func() {}}
	defer push.Close()
	push.Quarantined(objects)
	synctest.Wait()
	b.SetFaults(buckettest.Faults{Down: isDown})
	start := time.Now()
	results := push.Commit(t.Context(), []receivepack.Proposal{{Push: &receivepack.Push{ID: "p"},
		Updates: []receivepack.Update{update("main", 0, 1)}}})
	return time.Since(start), results[0].Err
}

var _ bucket.Bucket = (*slowUploads)(nil)
