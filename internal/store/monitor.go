package store

import (
	"cmp"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/hydrate"
)

const (
	monitorInterval = 10 * time.Second // between two checks of the store's identity
	downInterval    = time.Second      // the same while the store is down
	probePause      = time.Minute      // between two probes after one that the store did not pass
)

// health is what the monitor knows about the store.
type health struct {
	err      atomic.Pointer[error] // why the store cannot be used at present; nil: it can
	replaced atomic.Pointer[error] // the store got another ID: it is not used any more
	untested atomic.Bool           // the store was down at the start: it has to pass the probe before records are written
	wake     chan struct{}         // has an element if a request failed since the last check
}

func (h *health) isDown() bool { return h.err.Load() != nil }

// doubt makes the monitor check the store soon, because a request failed.
func (h *health) doubt() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// monitor reads the identity of the store regularly. So Ready is right without requests, and this node stops using a
// store that got another ID: a promoted copy that took the place of the original.
func (s *Store) monitor() {
	for {
		interval, wake := monitorInterval, s.health.wake
		if s.health.isDown() {
			interval, wake = downInterval, nil // the outage is known
		}
		pause := time.NewTimer(interval*3/4 + rand.N(interval/2))
		select {
		case <-s.ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		case <-wake:
			pause.Stop()
		}
		s.checkIdentity()
	}
}

// checkIdentity reads the identity of the store once. It waits as long as a request does when the store is not down.
func (s *Store) checkIdentity() {
	patient := quickBucket{Bucket: s.options.Bucket, isDown: func() bool { return false }}
	id, err := ReadIdentity(s.ctx, patient)
	if s.ctx.Err() != nil {
		return
	}
	if err == nil && id.ID != s.identity.ID {
		err = fault.New(fault.Unavailable, "the store has another ID now (%s instead of %s), so that this node must not use "+
			"it: remove the local cache and restart the node", id.ID, s.identity.ID)
		if s.health.replaced.CompareAndSwap(nil, &err) {
			s.log.Error("the store was replaced by another one", "url", s.options.URL, "error", err)
		}
	}
	if err == nil {
		err = s.refused() // it had another ID before
	}
	if fault.Is(err, fault.NotFound) {
		err = &fault.Error{Kind: fault.Unavailable, RetryAfter: fault.RetryMuchLater, Err: err,
			Msg: "the bucket does not hold the store any more: " + IdentityKey + " does not exist; restore it from a version " +
				"or a copy of the bucket"}
	}
	if err == nil && s.health.untested.Load() {
		err = s.admit()
	}
	was := s.health.isDown()
	switch {
	case err != nil:
		s.health.err.Store(&err)
		s.metrics.reachable.Set(0)
		if !was {
			s.log.Warn("the store cannot be used", "url", s.options.URL, "error", err)
		}
	case was:
		s.health.untested.Store(false)
		s.health.err.Store(nil)
		s.local.reset()
		s.metrics.reachable.Set(1)
		s.log.Info("the store can be used again", "url", s.options.URL)
	}
}

// admit probes the store after a start without it. The error is why the store cannot be used yet.
func (s *Store) admit() error {
	_, err := bucket.Probe(s.ctx, s.options.Bucket, bucket.ProbeOptions{})
	if err != nil && !isOutage(err) && s.ctx.Err() == nil {
		s.health.err.Store(&err)
		s.log.Error("the store did not pass its tests", "url", s.options.URL, "error", err)
		_ = retry.Sleep(s.ctx, probePause)
	}
	return err
}

// untested returns why no record may be written since the start, or nil.
func (s *Store) untested() error {
	if !s.health.untested.Load() {
		return nil
	}
	return cmp.Or(s.Ready(),
		fault.Retry(fault.Unavailable, fault.RetrySoon, "the object storage is being tested; try again"))
}

// Ready returns why the store cannot be used, or nil.
func (s *Store) Ready() error {
	if err := s.health.err.Load(); err != nil {
		return *err
	}
	return nil
}

// Usage returns the space of the local copies.
func (s *Store) Usage() hydrate.Usage { return s.cache.Usage() }

// refused returns why the store must not be used any more, or nil.
func (s *Store) refused() error {
	if err := s.health.replaced.Load(); err != nil {
		return *err
	}
	return nil
}
