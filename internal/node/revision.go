package node

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Question is a revision in a repository.
type Question struct {
	Repository git.RepoPath
	Revision   string // see gitrevisions(7); empty means HEAD
}

// Answer is the object that a revision names.
type Answer struct {
	ID   git.ObjectID
	Type git.ObjectType
	// full name of the ref at the start of the revision, after symbolic refs; empty for an object ID
	Ref     string
	Version git.Version
	Purges  string // changes when objects of the repository are purged; not kept by caches of answers
}

// Result is the answer to one question, or an error: NotFound, Invalid for an invalid revision, Exists for an ambiguous
// one, or an error of the node.
type Result struct {
	Answer
	Err error
}

// Event is a change of a repository's refs.
type Event struct {
	Repository git.RepoPath
	Version    git.Version // after the change
	Gone       bool        // the repository does not exist
}

// Known is the state of a repository that a watcher knows.
type Known struct {
	Repository git.RepoPath
	Version    git.Version // zero if unknown
}

// Resolver resolves revisions in the repositories of a node. It is safe for concurrent use.
type Resolver interface {
	// Resolve answers questions about any repositories, in their order. Those about one repository see one state of it.
	Resolve(ctx context.Context, questions []Question) ([]Result, error)
	// Watch reports each change until ctx ends or send fails. It begins with one event for each repository.
	Watch(ctx context.Context, from []Known, send func(Event) error) error
}
