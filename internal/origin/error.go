package origin

import (
	"errors"
	"net/url"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

var errUnsupported = fault.New(fault.Internal, "not supported yet")

// Error is what an origin answered or failed to answer. It is the cause of an error with a kind.
type Error struct {
	Status     int           // of the HTTP response; 0 if there was none
	RetryAfter time.Duration // until the origin wants another request; 0 if it did not say
	Moved      *url.URL      // the target of a redirect that was not followed; nil if there was none
	Down       bool          // see IsDown
	Err        error
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// IsDown reports whether an error means that the origin cannot answer at present. It gave no answer in time, DNS or TLS
// failed, or its status was 5xx, 429, or 403 with Retry-After. An open circuit breaker and a used budget count as well.
func IsDown(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Down
}
