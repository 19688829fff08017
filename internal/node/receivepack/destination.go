package receivepack

import (
	"context"
	"os"

	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// destination is where the updates of a push take effect. It is called in the order of the methods.
type destination interface {
	// begin is called before Git is started, and returns what Git has to be started with. The snapshot has all refs, also
	// hidden ones. After an error no other method is called.
	begin(ctx context.Context, before *refs.Snapshot) (gitSetup, error)
	// agreed is called when all hooks have accepted the push, and Git itself has refused none of its updates. An error
	// rejects the push.
	agreed() error
	// ended is called when Git has ended; pid is 0 if it could not be started. exited reports whether it ended by itself.
	ended(ctx context.Context, pid int, exited bool)
	// apply makes the updates durable and visible, and returns those that were made. gitErr is the error of Git. After an
	// error the updates of the result were made nevertheless, unless they are not known.
	apply(ctx context.Context, gitErr error) (updates []Update, isKnown bool, err error)
}

// gitSetup is what a destination needs of git receive-pack.
type gitSetup struct {
	config     [][2]string
	hasScripts bool       // Git has to run the server's pre-receive script even if no hook needs it
	files      []*os.File // that Git inherits
	trace      *os.File   // that gets the events of Git (git's api-trace2); nil: none
}

func newDestination(p *pushSession) destination {
	if p.target.Shadow != nil {
		return &byCommit{pushSession: p}
	}
	return &inPlace{pushSession: p}
}
