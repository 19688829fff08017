package hydrate

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// A use downloads missing packs, once for all callers, in parts.
func TestUse(t *testing.T) {
	t.Parallel()
	b := newFakeBucket()
	c := open(t, Options{Bucket: b})
	r, rec := c.Repository("a"), newRecord()
	b.addPack(rec, "a", "1", 2*partBytes+12345)
	b.addPack(rec, "a", "2", 1000)
	b.addPack(rec, "a", "3", 0)
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			done, err := r.Use(t.Context(), rec, nil)
			if err != nil {
				t.Error(err)
				return
			}
			checkPresent := r.Complete(rec)
			done()
			done()
			if !checkPresent {
				t.Error("Complete() = false after Use, want true")
			}
		})
	}
	callers.Wait()
	checkFiles(t, b, r, rec)
	checkEmptyState(t, c)
	const want = 3 + 1 + 1 + 1 // parts of the first pack and of its index, the second pack and its index
	if got := b.requests(); got != want {
		t.Errorf("%d requests, want %d", got, want)
	}
	if c.unwritten != 0 || c.bytes != packBytes(&rec.Packs[0])+packBytes(&rec.Packs[1]) {
		t.Errorf("%d bytes, %d not written; want the size of the packs and 0", c.bytes, c.unwritten)
	}
	next := *rec
	next.Number = 2
	b.addPack(&next, "a", "4", 500)
	use(t, r, &next)()
	checkFiles(t, b, r, &next)
	if got := b.requests(); got != want+2 {
		t.Errorf("%d requests after another pack, want %d", got, want+2)
	}
	b.put("repos/a/packs/extra-txn.rev", []byte("x"))
	last := next
	last.Number = 3
	last.Packs = append([]replog.Pack(nil), next.Packs...)
	b.addPack(&last, "a", "5", 100)
	last.Packs[4].Extra = []replog.File{{Ext: ".bitmap", Bytes: 10}}
	use(t, r, &last)() // an extra file is not necessary
}

// Requests that fail in the middle are repeated from where they ended.
func TestCutRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBucket()
		c := open(t, Options{Bucket: b})
		r, rec := c.Repository("a"), newRecord()
		b.addPack(rec, "a", "1", 100_000)
		b.setHook(func(_ context.Context, key string, part []byte) ([]byte, error) {
			switch b.times(key) % 4 {
			case 0:
				return nil, fault.Retry(fault.Unavailable, fault.RetrySoon, "slow down")
			case 1:
				return nil, io.ErrUnexpectedEOF
			}
			return part[:(len(part)+1)/2], nil
		})
		use(t, r, rec)()
		checkFiles(t, b, r, rec)
	})
}

// Damaged objects fail with an error that names the object, and leave nothing behind.
func TestDamagedObjects(t *testing.T) {
	t.Parallel()
	const key = "repos/a/packs/pack-1-txn.pack"
	for name, damage := range map[string]func(b *fakeBucket){
		"other bytes": func(b *fakeBucket) { b.put(key, make([]byte, 1000)) },
		"longer":      func(b *fakeBucket) { b.put(key, make([]byte, 1001)) },
		"cut":         func(b *fakeBucket) { b.put(key, make([]byte, 10)) },
		"missing":     func(b *fakeBucket) { delete(b.objects, key) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newFakeBucket()
			c := open(t, Options{Bucket: b})
			r, rec := c.Repository("a"), newRecord()
			b.addPack(rec, "a", "1", 1000)
			good := b.objects[key]
			damage(b)
			_, err := r.Use(t.Context(), rec, nil)
			if !fault.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), key) ||
				!strings.Contains(err.Error(), "versioning") || strings.Contains(fault.Message(err), key) {
				t.Errorf("Use: %v (%v), want Corrupt with the key and a remedy for the operator", err, fault.KindOf(err))
			}
			if got, want := errors.Is(err, bucket.ErrNotFound), name == "missing"; got != want {
				t.Errorf("Use: %v is ErrNotFound: %t, want %t", err, got, want)
			}
			if c.bytes != 0 || c.unwritten != 0 || len(r.uses) != 0 {
				t.Errorf("%d bytes, %d not written, uses %v; want nothing", c.bytes, c.unwritten, r.uses)
			}
			checkEmptyState(t, c)
			before := b.requests()
			if _, again := r.Use(t.Context(), rec, nil); again != err || b.requests() != before {
				t.Errorf("a second Use made %d requests and failed with %v, want 0 requests and the same error",
					b.requests()-before, again)
			}
			b.put(key, good)
			r.failed = nil
			use(t, r, rec)()
			checkFiles(t, b, r, rec)
		})
	}
}

// An object that was damaged on its way is downloaded again.
func TestDamagedTransfer(t *testing.T) {
	t.Parallel()
	b := newFakeBucket()
	c := open(t, Options{Bucket: b})
	r, rec := c.Repository("a"), newRecord()
	b.addPack(rec, "a", "1", 1000)
	var once sync.Once
	b.setHook(func(_ context.Context, key string, part []byte) ([]byte, error) {
		once.Do(func() { part = make([]byte, len(part)) })
		return part, nil
	})
	use(t, r, rec)()
	checkFiles(t, b, r, rec)
	if c.unwritten != 0 {
		t.Errorf("%d bytes not written, want 0", c.unwritten)
	}
}

// A caller waits for a limited time, and its hydration continues without it.
func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBucket()
		c := open(t, Options{Bucket: b, Wait: 10 * time.Second})
		r, rec := c.Repository("a"), newRecord()
		b.addPack(rec, "a", "1", 3<<20)
		proceed := make(chan struct{})
		b.setHook(func(ctx context.Context, key string, part []byte) ([]byte, error) {
			if strings.HasSuffix(key, ".idx") {
				return part, nil
			}
			select {
			case <-proceed:
				return part, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		calls, got, of := 0, int64(0), int64(0)
		start := time.Now()
		_, err := r.Use(t.Context(), rec, func(done, total int64) {
			calls++
			got, of = done, total
		})
		if !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) == 0 || !strings.Contains(err.Error(), "of 4 MiB") &&
			!strings.Contains(err.Error(), "of 3 MiB") {
			t.Errorf("Use: %v, want Unavailable with a retry hint and the progress", err)
		}
		if took := time.Since(start); took != 10*time.Second || calls < 15 {
			t.Errorf("Use waited %v and reported progress %d times, want 10 s and about 20 times", took, calls)
		}
		if got == 0 || got >= of {
			t.Errorf("progress is %d of %d, want a part of the bytes", got, of)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.Use(ctx, rec, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Use of a caller that leaves: %v, want its deadline", err)
		}
		close(proceed)
		synctest.Wait()
		if !r.Complete(rec) || len(r.uses) != 0 {
			t.Errorf("Complete() = %t with uses %v after the hydration, want true and none", r.Complete(rec), r.uses)
		}
	})
}

// A store that does not answer is an error after a while. A request without data is given up and repeated.
func TestUnavailableStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBucket()
		c := open(t, Options{Bucket: b, Wait: time.Hour})
		r, rec := c.Repository("a"), newRecord()
		b.addPack(rec, "a", "1", 1000)
		b.setHook(func(context.Context, string, []byte) ([]byte, error) {
			return nil, fault.Retry(fault.Unavailable, fault.RetrySoon, "no connection")
		})
		start := time.Now()
		_, err := r.Use(t.Context(), rec, nil)
		if took := time.Since(start); !fault.Is(err, fault.Unavailable) || took > 30*time.Second {
			t.Errorf("Use: %v after %v, want Unavailable within 30 s", err, took)
		}
		time.Sleep(retryFailed)
		var n atomic.Int32
		b.setHook(func(ctx context.Context, _ string, part []byte) ([]byte, error) {
			if n.Add(1) == 1 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return part, nil
		})
		start = time.Now()
		use(t, r, rec)()
		if took := time.Since(start); took < stallTimeout || took > 2*stallTimeout {
			t.Errorf("Use took %v, want a little more than %v", took, stallTimeout)
		}
	})
}

// A prefetch needs no caller.
func TestPrefetch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBucket()
		c := open(t, Options{Bucket: b})
		r, rec := c.Repository("a"), newRecord()
		b.addPack(rec, "a", "1", 1000)
		r.Prefetch(rec)
		r.Prefetch(rec)
		synctest.Wait()
		before := b.requests()
		use(t, r, rec)()
		if before != 2 || b.requests() != before {
			t.Errorf("%d requests for the prefetch and %d in all, want 2 and 2", before, b.requests())
		}
		r.Prefetch(rec)
	})
}

// Close ends a hydration.
func TestCloseEndsHydrations(t *testing.T) {
	t.Parallel()
	b := newFakeBucket()
	c := open(t, Options{Bucket: b})
	r, rec := c.Repository("a"), newRecord()
	b.addPack(rec, "a", "1", 1000)
	b.setHook(func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	r.Prefetch(rec)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Use(t.Context(), rec, nil); !fault.Is(err, fault.Unavailable) {
		t.Errorf("Use after Close: %v, want Unavailable", err)
	}
	checkEmptyState(t, c)
}
