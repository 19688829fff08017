// Package fault defines the kinds of errors that every boundary preserves: processes, protocols and logs.
//
// A kind determines what a caller can do about an error: change the request, retry later, or ask the operator. Packages
// wrap errors with a kind and a message. Only the front ends (gateway, control) translate a kind to an HTTP status, an
// ERR pkt-line, an exit code or a code of an RPC. An error without a kind is Internal.
package fault

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Kind classifies an error by what a caller can do about it.
type Kind uint8

const (
	Internal        Kind = iota // a bug, or an unexpected environment
	Invalid                     // the request is invalid; the same request never succeeds
	NotFound                    // the repository, ref or object does not exist
	Denied                      // it exists, but this caller has no permission
	Exhausted                   // too many requests: retry after RetryAfter
	Unavailable                 // the server cannot answer at present: retry after RetryAfter
	Corrupt                     // stored data is corrupt; an operator has to act
	Cancelled                   // the caller cancelled the request or disconnected
	Deadline                    // a time limit expired
	Exists                      // it exists already
	Unauthenticated             // the caller has no credentials, or invalid ones
	Full                        // the disk or a quota has no room for what the request adds
	Aborted                     // the value of a ref or a file is not the expected one; Mismatches has them
	Precondition                // the state of the repository does not allow it
	OutOfRange                  // the requested data is not kept any more
)

var kindNames = [...]string{"internal", "invalid", "not_found", "denied", "exhausted", "unavailable", "corrupt",
	"cancelled", "deadline", "exists", "unauthenticated", "full", "aborted",
	"precondition", "out_of_range"}

// String returns the name of the kind in logs and metric labels.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "internal"
}

// Error is an error with a kind. Msg is for the person who sent the request and never contains a path or secret of the
// server. Err is only for the log.
type Error struct {
	Kind        Kind
	Msg         string        // the problem, for the client
	RetryAfter  time.Duration // for Exhausted and Unavailable; zero means no hint
	CallerLimit bool          // with Exhausted: a limit that another storage node has as well, such as that of the caller
	Err         error         // the cause, for the log; may be nil
	Field       string        // the field of the request that is invalid or not found ("changes[3].put.path"); may be ""
	Mismatches  []Mismatch    // with Aborted
}

// Mismatch is a ref or a path whose value is not the expected one. Values are object IDs, names of refs, or Absent.
type Mismatch struct{ Name, Expected, Actual string }

// Absent is the value of a ref or a path that does not exist.
const Absent = "absent"

// InField returns err with the name of the request's field that it is about. It returns nil if err is nil.
func InField(field string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Kind: KindOf(err), Msg: field + ": " + Message(err), RetryAfter: RetryAfter(err), Err: err, Field: field}
}

// InvalidField returns an Invalid error about a field of the request.
func InvalidField(field, format string, args ...any) error {
	return InField(field, New(Invalid, format, args...))
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Msg
	}
	return e.Msg + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// New returns an error of a kind with a formatted message.
func New(kind Kind, format string, args ...any) error {
	return &Error{Kind: kind, Msg: fmt.Sprintf(format, args...)}
}

// Wrap adds a kind and a message about the attempted action to err. It returns nil if err is nil.
func Wrap(kind Kind, msg string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Kind: kind, Msg: msg, Err: err}
}

// Retry returns an Exhausted or Unavailable error with a retry hint, such as RetrySoon.
func Retry(kind Kind, after time.Duration, format string, args ...any) error {
	return &Error{Kind: kind, Msg: fmt.Sprintf(format, args...), RetryAfter: after}
}

// CallerLimit returns an Exhausted error for a caller that has reached its own limit while others have not.
func CallerLimit(after time.Duration, format string, args ...any) error {
	return &Error{Kind: Exhausted, Msg: fmt.Sprintf(format, args...), RetryAfter: after, CallerLimit: true}
}

// KindOf returns the kind of the outermost Error in the chain. Errors of a context are Cancelled or Deadline.
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

// Is reports whether err is not nil and of this kind.
func Is(err error, kind Kind) bool { return err != nil && KindOf(err) == kind }

// IsCallerLimit reports whether err is an Exhausted error about a limit that another storage node has as well.
func IsCallerLimit(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Kind == Exhausted && e.CallerLimit
}

// Message returns the text of an error for the client: the message of the outermost Error without its cause, and a
// general text for an error without a kind.
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
	return "internal error; see the server's log"
}

// RetryAfter returns the retry hint of an error, or zero.
func RetryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.RetryAfter
	}
	return 0
}
