package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// errNoChange is the error of a change that turned out not to be necessary.
var errNoChange = errors.New("nothing to change")

const (
	// maxTries is how often a change is prepared because other nodes were faster.
	maxTries = 30
	// hastyTries is how many of them follow each other without a pause.
	hastyTries = 3
)

// appended is the result of a change.
type appended struct {
	record *replog.Record
	tries  int           // records that were tried; all but the last one lost
	took   time.Duration // with the wait for other changes of this node
}

// change appends a record that prepare makes from the head with Record.Next. If another node is faster, prepare is
// called again with its record. An error of prepare ends the change. errNoChange means that there is nothing to do,
// which a freshness check confirms. Changes of one repository on this node run one after the other.
//
// If the error is receivepack.ErrUnknown, the record may be in the log, or get there later. After other errors it never
// will be.
func (r *repository) change(ctx context.Context, prepare func(*state) (*replog.Record, error)) (appended, error) {
	return r.changeThen(ctx, prepare, func(*replog.Record) {})
}

// changeThen is change that calls won when the record is in the log, before this node serves it.
func (r *repository) changeThen(ctx context.Context, prepare func(*state) (*replog.Record, error),
	won func(*replog.Record)) (appended, error) {
	start := time.Now()
	select {
	case r.writing <- struct{}{}:
		defer func() { <-r.writing }()
	case <-ctx.Done():
		return appended{}, ctx.Err()
	}
	head := r.known()
	if head == nil {
		var err error
		if head, err = r.check().wait(ctx); err != nil {
			return appended{}, err
		}
	}
	for tries := 1; tries <= maxTries; tries++ {
		if err := r.mayAppend(); err != nil {
			return appended{}, err
		}
		if head.record.Deleted {
			return appended{}, fault.New(fault.NotFound, "the repository was deleted")
		}
		record, err := prepare(head)
		if errors.Is(err, errNoChange) {
			later, err := r.later(ctx, head)
			if err != nil {
				return appended{}, err
			}
			if later == nil {
				return appended{record: head.record, took: time.Since(start)}, nil
			}
			head = later
			continue
		}
		if err != nil {
			return appended{}, err
		}
		attempt, err := r.append(ctx, record)
		if err != nil {
			return appended{}, err
		}
		if attempt.Outcome() == replog.Won {
			won(record)
			r.adoptOwn(record)
			return appended{record, tries, time.Since(start)}, nil
		}
		head, err = r.adoptOther(attempt.Winner())
		if err == nil && tries >= hastyTries {
			err = retry.Sleep(ctx, rand.N(time.Duration(tries)*5*time.Millisecond))
		}
		if err != nil {
			return appended{}, err
		}
	}
	return appended{}, fault.Retry(fault.Unavailable, fault.RetrySoon,
		"the repository changes too fast: other servers were faster %d times; try again", maxTries)
}

// later returns the state of a later head, or nil. Without a record, only a freshness check shows which head is the
// latest.
func (r *repository) later(ctx context.Context, head *state) (*state, error) {
	latest, err := r.check().wait(ctx)
	if err != nil || latest.record.Number <= head.record.Number {
		return nil, err
	}
	return latest, nil
}

// adoptOwn adopts a record that this node has appended. It is the truth whether or not it can be applied here, so
// adopting it does not depend on the caller, and the next request tries again.
func (r *repository) adoptOwn(record *replog.Record) {
	if _, err := r.adopt(r.store.ctx, record); err != nil {
		r.store.log.Warn("cannot apply a record that was appended", "repository_id", r.id, "record", record.Number, "error",
			err)
	}
	r.publishTail()
}

// adoptOther adopts the record that won an attempt of this node. More records may have followed it, and all of them are
// read before the next attempt.
func (r *repository) adoptOther(winner *replog.Record) (*state, error) {
	if latest, err := r.log.Latest(r.store.ctx, winner); err == nil {
		winner = latest
	}
	return r.adopt(r.store.ctx, winner)
}

// mayAppend returns why no record may be appended.
func (r *repository) mayAppend() error {
	if err := r.broken.Load(); err != nil {
		return *err
	}
	return r.store.refused()
}

// append makes one attempt to append a record. It is decided unless there is an error.
func (r *repository) append(ctx context.Context, record *replog.Record) (*replog.Attempt[*replog.Record], error) {
	s := r.store
	if err := s.untested(); err != nil {
		return nil, err
	}
	release := func() {}
	if record.Events != nil {
		var err error
		if release, err = s.events.begin(ctx, r, record.Number == 1); err != nil {
			return nil, err
		}
	}
	start := time.Now()
	attempt, err := r.log.Append(ctx, record)
	if err != nil || attempt.Outcome() != replog.Unknown {
		defer release()
	}
	if large, ok := errors.AsType[*replog.TooLargeError](err); ok {
		return nil, r.tooLarge(large)
	}
	if err != nil {
		return nil, err
	}
	s.metrics.countAppend(attempt, time.Since(start))
	if attempt.Outcome() == replog.Unknown {
		s.health.doubt()
		err := unknown(attempt.Err())
		s.running.Go(func() { // changes the attempt
			if r.settle(attempt) != replog.Unknown {
				release()
			}
		})
		return nil, err
	}
	if attempt.Err() != nil { // lost, and the winner does not follow
		r.breakPromise(attempt.Err())
		return nil, attempt.Err()
	}
	return attempt, nil
}

// tooLarge returns the error for a record that is too large, with what to do.
func (r *repository) tooLarge(large *replog.TooLargeError) error {
	err := &fault.Error{Kind: fault.Unavailable, RetryAfter: fault.RetryMuchLater, Err: large}
	switch large.Field {
	case "packs":
		err.Msg = "the repository has too many packs, which maintenance has to combine first; try again later"
	case "refs", "pushes":
		err.Msg = "too many refs were changed recently, which have to be written to a checkpoint first; try again later"
		r.publishTail()
	default: // names, configuration
		err.Kind, err.RetryAfter = fault.Invalid, 0
		err.Msg = fmt.Sprintf("the repository has too much data in %q for the store: %d bytes, and all fields together have "+
			"at most %d; remove some of it", large.Field, large.FieldBytes, replog.MaxRecord)
	}
	return err
}

// unknown is the error for an attempt that is not decided.
func unknown(cause error) error {
	return &fault.Error{Kind: fault.Unavailable, RetryAfter: fault.RetryLater,
		Msg: "the object storage did not confirm the change: it may take effect later; check before you repeat it",
		Err: fmt.Errorf("%w: %w", receivepack.ErrUnknown, cause)}
}

// settleTimeout is how long the node tries to find out the result of an attempt when its caller has given up.
const settleTimeout = 10 * time.Minute

// settle continues an attempt in the background until it is decided. It removes a repository whose create has given up.
func (r *repository) settle(attempt *replog.Attempt[*replog.Record]) replog.Outcome {
	ctx, cancel := context.WithTimeout(r.store.ctx, settleTimeout)
	defer cancel()
	outcome := attempt.Settle(ctx)
	r.store.log.Info("an append with an unknown result was settled", "repository_id", r.id, "result", outcome.String())
	if outcome != replog.Unknown {
		r.check()
	}
	if record := attempt.Winner(); outcome == replog.Won && record.Kind == replog.KindCreate {
		_ = r.store.remove(r, record.Names[0]) // logs
	}
	return outcome
}
