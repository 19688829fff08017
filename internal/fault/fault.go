// Package fault holds the few kinds of error that survive every boundary.
//
// A kind says what a caller can do about an error: ask for something else, wait and try again, or call the
// operator. Packages wrap what they tried with a kind; only the front end (gateway) turns a kind into an HTTP status,
// an ERR pkt-line or an exit code. An error without a kind is Internal.
package fault

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Kind classifies an error by what can be done about it.
type Kind uint8

const (
	Internal        Kind = iota // a bug or an environment we did not foresee
	Invalid                     // the request itself is wrong; the same request never succeeds
	NotFound                    // what the request names does not exist
	Denied                      // it exists, but this caller may not have it
	Exhausted                   // too much at once: try again after RetryAfter
	Unavailable                 // the part that should answer cannot now: try again after RetryAfter
	Corrupt                     // what is stored cannot be trusted; an operator has to look
	Cancelled                   // the caller went away
	Deadline                    // a time limit ran out
	Exists                      // what should be made is there already
	Unauthenticated             // the caller has to say who it is, or did not prove it
)

var kindNames = [...]string{"internal", "invalid", "not_found", "denied", "exhausted", "unavailable", "corrupt", "cancelled", "deadline", "exists", "unauthenticated"}

// String is the kind's name in logs and metric labels.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "internal"
}

// Error is an error with a kind. Its text is for the person who sent the request: it never holds a path or a secret
// of the server unless Err is logged on its own.
type Error struct {
	Kind       Kind
	Msg        string        // what was wrong, as the caller may read it
	RetryAfter time.Duration // for Exhausted and Unavailable; zero: no advice
	Share      bool          // of Exhausted: the caller's own share is used up; there is room for others
	Err        error         // the cause, for the log; may be nil
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Msg
	}
	return e.Msg + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// New makes an error of a kind with a formatted message.
func New(kind Kind, format string, args ...any) error {
	return &Error{Kind: kind, Msg: fmt.Sprintf(format, args...)}
}

// Wrap gives err a kind and a message that says what was tried. A nil err stays nil.
func Wrap(kind Kind, msg string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Kind: kind, Msg: msg, Err: err}
}

// Retry makes an Exhausted or Unavailable error that says when to come back.
func Retry(kind Kind, after time.Duration, format string, args ...any) error {
	return &Error{Kind: kind, Msg: fmt.Sprintf(format, args...), RetryAfter: after}
}

// Share makes an Exhausted error about a caller's own share of what there is.
func Share(after time.Duration, format string, args ...any) error {
	return &Error{Kind: Exhausted, Msg: fmt.Sprintf(format, args...), RetryAfter: after, Share: true}
}

// KindOf tells the kind of the outermost Error in the chain; a context's error is Cancelled or Deadline.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	switch {
	case errors.Is(err, context.Canceled):
		return Cancelled
	case errors.Is(err, context.DeadlineExceeded):
		return Deadline
	}
	return Internal
}

// Is reports whether err is of this kind.
func Is(err error, kind Kind) bool { return err != nil && KindOf(err) == kind }

// IsShare reports whether err is of kind Exhausted and about the caller's own share.
func IsShare(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Kind == Exhausted && e.Share
}

// Message is the part of an error that may be shown to the caller: the outermost Error's text without its cause.
// An error without a kind shows nothing of itself.
func Message(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Msg
	}
	switch KindOf(err) {
	case Cancelled:
		return "the request was cancelled"
	case Deadline:
		return "the request took too long"
	}
	return "internal error; the server's log says more"
}

// RetryAfter tells when a caller may come back; zero if the error gives no advice.
func RetryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.RetryAfter
	}
	return 0
}
