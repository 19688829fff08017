package bucket

import (
	"errors"
	"fmt"

	"github.com/packhorse-git/packhorse/internal/fault"
)

var (
	// ErrExists means that a key exists already.
	ErrExists = errors.New("the object exists already")
	// ErrNotFound means that a key does not exist.
	ErrNotFound = errors.New("the object does not exist")
	// ErrDenied means that the credentials do not permit an operation. Its kind is Unavailable and not Denied, because
	// clients of the Git server cannot do anything about it.
	ErrDenied = errors.New("the object storage denied access")
)

// Error is the detail of a failed operation, for logs and operators.
type Error struct {
	Operation string // the method of Bucket, in lower case
	Key       string // s3://BUCKET/PREFIX/KEY
	Remedy    string // what an operator can do; empty if nothing is known
	Err       error  // the problem
}

func (e *Error) Error() string {
	text := fmt.Sprintf("%s %s: %v", e.Operation, e.Key, e.Err)
	if e.Remedy != "" {
		text += " (" + e.Remedy + ")"
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }

// fail returns the error of an operation: a kind and a message for clients, around the detail.
func fail(kind fault.Kind, message string, detail *Error) error {
	e := &fault.Error{Kind: kind, Msg: message, Err: detail}
	if kind == fault.Unavailable {
		e.RetryAfter = fault.RetrySoon
	}
	return e
}
