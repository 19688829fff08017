// Package receivepack serves one push session: git receive-pack in quarantine, decisions by hooks, refs that are on disk before the client is told,
// and word of it to whoever has to know.
package receivepack

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Push is what a client wants changed.
type Push struct {
	ID      string       // of this push alone, for logs and deliveries
	Repo    git.RepoPath // as the client named it
	Pusher  node.Pusher
	Options []string // push options
	Updates []Update
	Trace   string // activity.TraceParent of who pushes
}

// Update is one ref that changes.
type Update struct {
	Ref      git.RefName
	Old, New git.ObjectID // the zero ID: there is none
}

// Decider is asked before refs change, while the new objects are in quarantine. An error refuses the push; its fault's message is for the
// client. Safe for concurrent use.
type Decider interface {
	Decide(ctx context.Context, p *Push) error
}

// Recorder keeps, on disk, what has to be delivered after a push, so that a crash loses none of it. Safe for concurrent use.
type Recorder interface {
	// Begin notes, durably, that a push may be about to change refs.
	Begin(p *Push) (Record, error)
}

// Record is one push that was begun. One that is never ended, because the process died or the refs could not be read, is for the Recorder to settle
// later.
type Record interface {
	// End notes, durably, which updates came to be, before the client is told of them; none: there is nothing to deliver.
	End(done []Update) error
}
