package receivepack

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Push is what a client wants to change.
type Push struct {
	ID      string       // unique, for logs and deliveries
	Repo    git.RepoPath // as the client named it
	Pusher  node.Pusher
	Options []string // push options
	Updates []Update
	Trace   string // inflight.TraceParent of the request
	Record  uint64 // number of the record that has the updates, when they are made; 0 without a Shadow
	// Incarnation is that of git.Version.
	Incarnation string
}

// Update is the change of one ref. The zero ID stands for a ref that does not exist.
type Update struct {
	Ref      git.RefName
	Old, New git.ObjectID
	Kind     Kind // valid for a Decider, a Recorder, Changed and Shadow.Commit
	Hidden   bool // clients that fetch do not see the ref; valid as Kind
}

// Decider decides whether a push is accepted. It is asked while the new objects are in quarantine, before refs change.
// An error rejects the push, and the client gets the message of its fault. A Decider is safe for concurrent use.
type Decider interface {
	Decide(ctx context.Context, p *Push) error
}

// Recorder records pushes on disk, so that a crash loses none. It is safe for concurrent use.
type Recorder interface {
	// Begin durably records that pushes may be about to change refs.
	Begin(pushes ...*Push) error
	// End durably records the results of pushes, before clients get their reports. If it is never called, because the
	// server died, the Recorder has to find out what happened.
	End(results ...Result) error
}

// Result is the result of a push.
type Result struct {
	Push      *Push
	Made      []Update // empty: nothing changed
	IsUnknown bool     // Made is not known; the Recorder has to find out
}
