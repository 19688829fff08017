package hydrate

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// task is one change of a repository's packs: a hydration or a removal. A repository has at most one at a time.
type task struct {
	record *replog.Record // of a hydration; nil: a removal
	ctx    context.Context
	cancel context.CancelFunc
	start  time.Time

	total, written, published atomic.Int64 // bytes of a hydration: in all, downloaded, and of complete packs

	done  chan struct{}
	err   error     // valid once done is closed
	ended time.Time // the same
}

func newTask(rec *replog.Record) *task {
	return &task{record: rec, cancel: func() {}, start: time.Now(), done: make(chan struct{})}
}

func (t *task) progress() (done, total int64) { return t.written.Load(), t.total.Load() }

// retryFailed is the time for which the error of a hydration answers other callers, so that a damaged object is not
// downloaded again for each of them.
const retryFailed = 2 * time.Second

// hydrateLocked returns a task to wait for, and starts a hydration for rec if none runs. The error is why it cannot.
func (r *Repository) hydrateLocked(rec *replog.Record) (*task, error) {
	c := r.cache
	switch t := r.failed; {
	case r.removed:
		return nil, errRemoved
	case r.task != nil:
		return r.task, nil
	case c.ctx.Err() != nil:
		return nil, fault.Retry(fault.Unavailable, fault.RetrySoon, "the server is shutting down")
	case t != nil && t.record.Txn == rec.Txn && time.Since(t.ended) < retryFailed:
		return nil, t.err
	}
	t := newTask(rec)
	t.ctx, t.cancel = context.WithCancel(c.ctx)
	r.task = t
	c.running.Go(func() { r.finish(t, r.hydrate(t)) })
	return t, nil
}

// finish ends a task and wakes its waiters.
func (r *Repository) finish(t *task, err error) {
	c := r.cache
	t.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	t.err, t.ended = err, time.Now()
	r.task = nil
	if t.record != nil {
		if r.failed = nil; err != nil {
			r.failed = t
		}
	}
	close(t.done)
	r.sweepLocked()
}

// progressInterval is the interval between two calls of the progress function.
const progressInterval = 500 * time.Millisecond

// waiter waits for tasks, for the caller of Use.
type waiter struct {
	ctx      context.Context
	progress func(done, total int64)
	timeout  *time.Timer
	ticker   *time.Ticker
}

// wait waits for a task, for at most limit since the first call. The error of a hydration is returned only if the
// hydration was for the record.
func (w *waiter) wait(t *task, txn string, limit time.Duration) error {
	if w.timeout == nil {
		w.timeout, w.ticker = time.NewTimer(limit), time.NewTicker(progressInterval)
	}
	for {
		select {
		case <-t.done:
			if t.record != nil && t.record.Txn == txn {
				return t.err
			}
			return nil
		case <-w.ctx.Done():
			return w.ctx.Err()
		case <-w.timeout.C:
			done, total := t.progress()
			return fault.Retry(fault.Unavailable, t.remaining(), "the repository is being copied to the node or "+
				"checked there (%d of %d MiB): try again", done>>20, total>>20)
		case <-w.ticker.C:
			if done, total := t.progress(); w.progress != nil && total > 0 {
				w.progress(done, total)
			}
		}
	}
}

func (w *waiter) stop() {
	if w.timeout != nil {
		w.timeout.Stop()
		w.ticker.Stop()
	}
}

// remaining estimates the duration of the rest of a hydration, for a retry hint.
func (t *task) remaining() time.Duration {
	done, total := t.progress()
	if done == 0 {
		return fault.RetryMuchLater
	}
	rest := time.Duration(float64(time.Since(t.start)) * float64(total-done) / float64(done))
	return min(max(rest, fault.RetrySoon), time.Minute)
}

func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", (n+1<<20-1)>>20) }
