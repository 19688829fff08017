// Package write makes the changes that programs request by calls instead of pushes. All rules of a push apply to them
// (package receivepack). The changes of a repository that are ready at the same time share one pack, one transaction of
// its refs, and one record of the store.
package write

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// Change is a requested change of a repository.
type Change struct {
	Pusher  node.Pusher
	Options []string // push options
	Atomic  bool     // all updates or none
	DryRun  bool     // do everything except changing refs and running hooks
	// Build returns what to change, for a state of the repository. If another change comes first, it is called again with
	// the state after that. Calls are not concurrent. Other changes of the repository wait for it: what does not depend on
	// refs is prepared before. Its error ends the change, and is the result.
	Build func(ctx context.Context, s State) (Plan, error)
}

// State is the state of a repository to which a change is made: that on disk, and earlier changes that are about to
// become visible. It is valid while Build runs.
type State interface {
	Repo() *repo.Repo
	// Ref returns the object ID of a ref by its full name; zero if it does not exist. Hidden refs do not exist.
	Ref(name git.RefName) (git.ObjectID, error)
	// Read reads an object of at most limit bytes; 0: the usual limit of pack.Store.
	Read(id git.ObjectID, limit int64) (git.ObjectType, []byte, error)
}

// Plan is what a change does.
type Plan struct {
	// Updates are of different refs. Old is the value that the ref must have: State.Ref returned it.
	Updates []receivepack.Update
	// Objects are the new objects that the updates need, in any order. They may exist already. They are not used any more
	// when Write has returned: their contents can be in a file that is then closed.
	Objects []*Object
}

// Result is what a change did.
type Result struct {
	// Version is that of the state with the change.
	Version git.Version
	// Refused has, by update, why it was not made. Nil: all were made. Only a change with several updates that is not
	// atomic has it; otherwise Write returns the error.
	Refused []error
	// Messages are lines of hooks and of the server for the user.
	Messages []string
}
