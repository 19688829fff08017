package replog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

// Outcome is the result of an attempt to append a record.
type Outcome uint8

const (
	Unknown Outcome = iota // not decided: the record may be in the log, or may get there later
	Won                    // the record is in the log
	Lost                   // another record has the number; this one will never be in the log
)

// String returns the name of the outcome in metrics.
func (o Outcome) String() string { return [...]string{"unknown", "won", "lost"}[o] }

const (
	// patience is how long Append tries to decide an attempt.
	patience = 30 * time.Second
	// tryTimeout bounds one request of an attempt.
	tryTimeout = 5 * time.Second
)

// pauses are those between two tries.
var pauses = retry.Policy{First: 50 * time.Millisecond, Max: 2 * time.Second}

// Attempt is one attempt to append a record. It is not safe for concurrent use.
type Attempt[R entry] struct {
	log    *Series[R]
	record R
	body   []byte

	outcome Outcome
	winner  R     // with Lost
	err     error // of the last request, or ErrBrokenPromise
	tries   int
}

// Outcome returns the present outcome of the attempt.
func (a *Attempt[R]) Outcome() Outcome { return a.outcome }

// Winner returns the record that has the number: the attempt's own if it was Won, the other one if it was Lost. It is
// the zero R if the outcome is Unknown.
func (a *Attempt[R]) Winner() R { return a.winner }

// Tries returns the number of PUTs.
func (a *Attempt[R]) Tries() int { return a.tries }

// Err returns the reason of an Unknown outcome. If the outcome is Lost, Err is nil or wraps ErrBrokenPromise: then the
// winner does not follow the record on which the attempt was based.
func (a *Attempt[R]) Err() error { return a.err }

// Append appends r, made by Record.Next from the head that the caller knows. It returns as soon as the attempt is
// decided, after 30 seconds, or when ctx ends. Settle can then continue. Append returns an error only if r is invalid
// or too large, and nothing was written.
//
// This is the only function that decides whether a record was written. Callers never conclude anything from an error
// of the store.
func (l *Series[R]) Append(ctx context.Context, r R) (*Attempt[R], error) {
	body, err := r.Encode()
	if err != nil {
		return nil, err
	}
	a := &Attempt[R]{log: l, record: r, body: body}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	a.Settle(ctx)
	return a, nil
}

// Settle continues until the attempt is decided or ctx ends, and returns the outcome. It does nothing if the attempt is
// decided already.
func (a *Attempt[R]) Settle(ctx context.Context) Outcome {
	for failures := 1; a.outcome == Unknown; failures++ {
		a.try(ctx)
		if a.outcome == Unknown && pauses.Wait(ctx, failures, 0) != nil {
			return Unknown
		}
	}
	return a.outcome
}

// try writes the record once. Unless the store confirms it, try reads the record that has the number.
func (a *Attempt[R]) try(ctx context.Context) {
	number, txn, parent := a.record.position()
	putCtx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	a.tries++
	putErr := a.log.bucket.Create(putCtx, a.log.Key(number), a.body)
	if putErr == nil {
		a.outcome, a.winner, a.err = Won, a.record, nil
		return
	}
	getCtx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	winner, err := a.log.Get(getCtx, number)
	if err != nil {
		if fault.Is(err, fault.NotFound) {
			err = putErr
		}
		a.err = fmt.Errorf("record %d: it is not known whether it was written: %w", number, errors.Join(err, ctx.Err()))
		return
	}
	_, winnerTxn, winnerParent := winner.position()
	a.winner, a.err = winner, nil
	switch {
	case winnerTxn == txn:
		a.outcome, a.winner = Won, a.record
	case winnerParent != parent:
		a.outcome, a.err = Lost, a.log.broken(number, winnerParent, parent)
	default:
		a.outcome = Lost
	}
}
