package store

import (
	"context"
	"errors"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// current returns the state of the repository at a moment after the call: the result of a freshness check, which is one
// GET if nothing has changed. Concurrent callers share checks.
//
// With Options.MaxStaleness, a recent state is returned at once, and with Options.StaleIfError one that is older if the
// store cannot be reached. Errors: NotFound if the repository never existed, Unavailable if the store cannot be
// reached, and Corrupt. The state of a deleted repository is not an error.
func (r *repository) current(ctx context.Context) (*state, error) {
	s := r.store
	if err := s.refused(); err != nil {
		return nil, err
	}
	start := s.now()
	known := r.known()
	if known != nil && r.broken.Load() != nil {
		r.trace(ctx, known, 0, 0)
		return known, nil // the last state that is certain
	}
	if known != nil && s.options.MaxStaleness > 0 {
		age := r.age()
		if age > s.options.MaxStaleness/2 {
			r.check() // in the background
		}
		if age <= s.options.MaxStaleness {
			r.trace(ctx, known, 0, 0)
			return known, nil
		}
	}
	state, err := r.check().wait(ctx)
	age := time.Duration(0)
	if err != nil && ctx.Err() == nil {
		state, age, err = r.stale(err)
	}
	if err == nil {
		r.trace(ctx, state, s.now()-start, age)
	}
	return state, err
}

// trace notes a freshness check of a request.
func (r *repository) trace(ctx context.Context, found *state, took, age time.Duration) {
	if t := node.StoreTraceOf(ctx); t != nil {
		isHeld := !found.record.Deleted && r.local.Complete(found.record)
		t.Checked(node.Stored{Record: found.record.Number, Check: took, Held: isHeld}, age)
	}
}

// age returns the time since the beginning of the last successful check.
func (r *repository) age() time.Duration { return r.store.now() - time.Duration(r.checked.Load()) }

// stale returns the latest known state and its age, if it may be used although a check failed with err.
func (r *repository) stale(err error) (*state, time.Duration, error) {
	s, known := r.store, r.known()
	age, limit := r.age(), s.options.StaleIfError
	if limit == 0 || known == nil || !fault.Is(err, fault.Unavailable) || age > limit {
		return nil, 0, err
	}
	s.metrics.stale.Inc()
	s.staleLog.Do(func() {
		s.log.Warn("refs are answered from local data because the store cannot be reached", "repository_id", r.id,
			"stale_seconds", int64(age.Seconds()), "error", err)
	})
	return known, max(age, 1), nil
}

// check returns a freshness check that begins after the call.
func (r *repository) check() *run[*state] {
	run, joined := r.checks.start(&r.store.running, r.runCheck)
	if joined {
		r.store.metrics.checks.WithLabelValues("joined").Inc()
	}
	return run
}

// runCheck makes one freshness check.
func (r *repository) runCheck() (*state, error) {
	s := r.store
	start, began := s.now(), time.Now()
	before := r.known()
	state, err := r.latest(s.ctx)
	switch {
	case err != nil && !fault.Is(err, fault.NotFound):
		s.metrics.checks.WithLabelValues("failed").Inc()
		if fault.Is(err, fault.Unavailable) {
			s.health.doubt()
		}
		return nil, err
	case err == nil && before != nil && state.record.Number == before.record.Number:
		s.metrics.checks.WithLabelValues("current").Inc()
	default:
		s.metrics.checks.WithLabelValues("changed").Inc()
	}
	if err == nil && r.broken.Load() == nil {
		r.checked.Store(int64(start))
		r.saveChecked(began)
	}
	return state, err
}

// maxAdoptions is how often a check is repeated because the head changed while its checkpoint was downloaded.
const maxAdoptions = 3

// latest reads the head and adopts it.
func (r *repository) latest(ctx context.Context) (*state, error) {
	known := r.known()
	var record *replog.Record
	if known != nil {
		record = known.record
	} else { // perhaps from before a restart
		var err error
		if record, err = r.local.Applied(ctx); err != nil {
			return nil, err
		}
	}
	local := record
	for adoptions := 1; ; adoptions++ {
		head, err := r.head(ctx, record)
		if err == nil && head == local {
			err = r.confirm(ctx, head)
		}
		if err != nil {
			return r.afterFailure(ctx, local, err)
		}
		if known != nil && head.Number == known.record.Number {
			return known, nil
		}
		state, err := r.adopt(ctx, head)
		if !errors.Is(err, bucket.ErrNotFound) || adoptions == maxAdoptions {
			return state, err
		}
		record = head
	}
}

// head returns the record with the greatest number, where known is an earlier one or nil.
func (r *repository) head(ctx context.Context, known *replog.Record) (*replog.Record, error) {
	if known == nil {
		return r.log.Head(ctx)
	}
	return r.log.Latest(ctx, known)
}

// confirmInterval is how often a check compares the record of this node with that of the bucket, if there is no later
// one.
const confirmInterval = 10 * time.Minute

// confirm makes sure that the bucket has a record that this node knows. A bucket that was restored from a backup does
// not, or has another one. A later record that follows shows the same, so this is rarely a request.
func (r *repository) confirm(ctx context.Context, record *replog.Record) error {
	now := r.store.now()
	if at := time.Duration(r.confirmed.Load()); at > 0 && now-at < confirmInterval {
		return nil
	}
	err := r.log.Confirm(ctx, record)
	if err == nil {
		r.confirmed.Store(int64(max(now, 1)))
	}
	return err
}

// afterFailure returns the last certain state if the error is proof that the store broke a promise. local is the record
// of this node, or nil.
func (r *repository) afterFailure(ctx context.Context, local *replog.Record, err error) (*state, error) {
	if fault.Is(err, fault.Unavailable) && local != nil && r.known() == nil {
		r.adoptBefore(ctx, local)
	}
	if errors.Is(err, replog.ErrBrokenPromise) {
		r.breakPromise(err)
		if known := r.known(); known != nil {
			return known, nil
		}
		if local != nil {
			return r.adoptLocal(ctx, local)
		}
	}
	return nil, err
}
