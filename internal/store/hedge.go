package store

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
)

const (
	// hedgeDelay is how long a GET may take before it is sent a second time.
	hedgeDelay = 250 * time.Millisecond
	// requestTimeout is how long a GET or a short listing may take, and downTimeout while the store is known to be
	// down.
	requestTimeout, downTimeout = 5 * time.Second, time.Second
	// putStall is how long an upload may go on without progress, and downPutStall while the store is known to be down.
	putStall, downPutStall = time.Minute, 5 * time.Second
	// finishRate is the number of bytes of a file for which the storage gets one more second after the last was read.
	// Amazon S3 takes minutes to put together the parts of a large file.
	finishRate = 16 << 20
)

// quickBucket is a bucket for requests that clients wait for. Slow GETs are sent a second time, and requests end soon.
type quickBucket struct {
	bucket.Bucket
	isDown func() bool
}

// limit returns a context for one request. Its cause distinguishes a slow store from a
// caller that left.
func (b quickBucket) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	timeout := requestTimeout
	if b.isDown() {
		timeout = downTimeout
	}
	return context.WithTimeoutCause(ctx, timeout, errSlow)
}

var errSlow = fault.Retry(fault.Unavailable, fault.RetrySoon, "the object storage does not answer in time; try again")

// slow replaces the error of a request that the time limit of its context ended.
func slow(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errSlow) {
		return &fault.Error{Kind: fault.Unavailable, RetryAfter: fault.RetrySoon, Msg: fault.Message(errSlow), Err: err}
	}
	return err
}

// Get implements bucket.Bucket.
func (b quickBucket) Get(ctx context.Context, key string, limit int64) ([]byte, bucket.Info, error) {
	ctx, cancel := b.limit(ctx)
	defer cancel()
	type answer struct {
		body []byte
		info bucket.Info
		err  error
	}
	answers := make(chan answer, 2)
	get := func() {
		body, info, err := b.Bucket.Get(ctx, key, limit)
		answers <- answer{body, info, err}
	}
	go get()
	pending := 1
	timer := time.NewTimer(hedgeDelay)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			pending++
			go get()
		case a := <-answers:
			pending--
			if a.err == nil || errors.Is(a.err, bucket.ErrNotFound) || pending == 0 {
				return a.body, a.info, slow(ctx, a.err)
			}
		case <-ctx.Done():
			return nil, bucket.Info{}, slow(ctx, ctx.Err())
		}
	}
}

// List implements bucket.Bucket.
func (b quickBucket) List(ctx context.Context, prefix, after string, limit int) ([]bucket.Info, error) {
	ctx, cancel := b.limit(ctx)
	defer cancel()
	list, err := b.Bucket.List(ctx, prefix, after, limit)
	return list, slow(ctx, err)
}

// Put implements bucket.Bucket. An upload may take as long as it needs, but it ends without progress: the attempts of
// the bucket itself can take ten times as long. Progress is that the file is read. After its end the storage gets time
// for its size.
func (b quickBucket) Put(ctx context.Context, key string, body io.ReaderAt, size int64, sum [32]byte) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	file := &watchedFile{ReaderAt: body, size: size, start: time.Now()}
	go file.watch(ctx, func() time.Duration {
		if b.isDown() {
			return downPutStall
		}
		return putStall
	}, cancel)
	return slow(ctx, b.Bucket.Put(ctx, key, file, size, sum))
}

// Copy implements bucket.Bucket. The storage gets time for the size of the object.
func (b quickBucket) Copy(ctx context.Context, from, to string, size int64) error {
	timeout := putStall
	if b.isDown() {
		timeout = downPutStall
	}
	timeout += time.Duration(size/finishRate) * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errSlow)
	defer cancel()
	return slow(ctx, b.Bucket.Copy(ctx, from, to, size))
}

// watchedFile is a file that is being uploaded. It notes when it was read.
type watchedFile struct {
	io.ReaderAt
	size  int64
	start time.Time
	last  atomic.Int64 // time of the last read, in nanoseconds since start
	isEnd atomic.Bool  // the last byte was read
}

// ReadAt implements io.ReaderAt.
func (f *watchedFile) ReadAt(p []byte, offset int64) (int, error) {
	f.last.Store(int64(time.Since(f.start)))
	if offset+int64(len(p)) >= f.size {
		f.isEnd.Store(true)
	}
	return f.ReaderAt.ReadAt(p, offset)
}

// watch calls cancel when nothing was read for the time that stall returns, and after the end of the file for a time
// that depends on its size. It returns when ctx ends.
func (f *watchedFile) watch(ctx context.Context, stall func() time.Duration, cancel context.CancelCauseFunc) {
	for retry.Sleep(ctx, time.Second) == nil {
		limit := stall()
		if f.isEnd.Load() {
			limit += time.Duration(f.size/finishRate) * time.Second
		}
		if time.Since(f.start)-time.Duration(f.last.Load()) > limit {
			cancel(errSlow)
			return
		}
	}
}
