package mirror

import (
	"context"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
)

// errNotYet is the error of missing code.
var errNotYet = fault.New(fault.Internal, "mirrors: not implemented yet")

// originCheck is one request for the refs of the origin, shared by concurrent callers.
type originCheck struct {
	start  time.Time
	done   chan struct{} // closed when the fields below are valid
	err    error
	update *update // that fetches the new state; nil if the repository has the state of the origin
}

// checked is the result of a check.
type checked struct {
	// Age is the age of the repository's state if the origin could not be asked or its new state could not be fetched.
	// The caller may use the repository, with a notice to the client. Zero means that the repository is up to date.
	Age time.Duration
	Err error // why the repository is not up to date; nil if it is
}

// updateWait is how long callers of check wait for an update.
const updateWait = 10 * time.Second

// errUpdating is the error of a check if the update takes longer than updateWait, or if the mirror is not complete yet.
var errUpdating = fault.Retry(fault.Unavailable, fault.RetryLater, "the mirror is being updated from its origin")

// check makes sure that the repository has the current state of the origin. A check within the window of the rule is
// shared; a forced one begins after the call. The check and the update that it starts go on if ctx ends.
//
// The error is errUpdating, or NotFound, Denied or Unauthenticated if the origin refuses. It is Unavailable if the
// origin cannot be asked and the mirror is too old (Rule.StaleFor) or not complete.
func (r *mirror) check(ctx context.Context, auth node.Secret, forced bool) (checked, error) {
	return checked{}, errNotYet
}
