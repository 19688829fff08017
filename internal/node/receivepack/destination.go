package receivepack

import (
	"context"
	"os"

	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// destination is where the updates of a push take effect. It is called in the order of the methods.
type destination interface {
	// config returns configuration for git receive-pack.
	config() [][2]string
	// needsScripts reports whether Git has to run the server's pre-receive script even if no hook needs it.
	needsScripts() bool
	// begin is called before Git is started. The snapshot has all refs, also hidden ones.
	begin(ctx context.Context, before *refs.Snapshot) error
	// files returns the files that Git inherits.
	files() []*os.File
	// running is called while Git runs, on a goroutine of its own. It returns when ctx ends, or earlier.
	running(ctx context.Context)
	// accepted is called when the push was accepted as a whole, except by the update hook for each ref. The updates are
	// those that Git has not refused itself. An error rejects the push.
	accepted(updates []Update) error
	// acceptedOne is called when the update hook has accepted a ref.
	acceptedOne() error
	// ended is called when Git has ended; pid is 0 if it could not be started. exited reports whether it ended by itself.
	ended(ctx context.Context, pid int, exited bool)
	// apply makes the updates durable and visible, and returns those that were made. gitErr is the error of Git. After an
	// error the updates of the result were made nevertheless, unless they are not known.
	apply(ctx context.Context, gitErr error) (updates []Update, isKnown bool, err error)
	// blockedBy returns a message about what blocks the refs of the push; "" if nothing does.
	blockedBy() string
}

func newDestination(p *pushSession) destination {
	if p.target.Shadow != nil {
		return &byCommit{pushSession: p}
	}
	return &inPlace{pushSession: p}
}
