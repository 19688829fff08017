// Package resolve answers which object a revision of a repository names, through tiers: what this process remembers, Redis, and the node that
// owns the repository.
//
// The node's answer is the truth. What the tiers keep carries the git.Version that it was true of, and the node's events put an end to it: nothing
// older than the latest event is given, however late it was filled in. A TTL bounds how long an answer may be wrong while events do not arrive.
package resolve

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Question asks what a revision names in a repository.
type Question struct {
	Repository git.RepoPath
	Revision   string // as gitrevisions(7) has it; empty: HEAD
}

// Answer is what a revision names.
type Answer struct {
	ID      git.ObjectID
	Type    git.ObjectType
	Ref     string // the full name of the ref that the revision begins with, after symbolic refs (HEAD is a branch); empty: it begins with an object ID
	Version git.Version
}

// Result is the answer to one of several questions, or why there is none: NotFound, Invalid for what is no revision, Exists for an ambiguous one, or
// what the node failed with.
type Result struct {
	Answer
	Err error
}

// Event says that what was known of a repository's refs does not hold any more.
type Event struct {
	Repository git.RepoPath
	Version    git.Version // after the change
	Gone       bool        // it is not there (any more)
}

// Known says which state of a repository a watcher knows already.
type Known struct {
	Repository git.RepoPath
	Version    git.Version // zero: none
}

// Node is who owns repositories. Safe for concurrent use.
type Node interface {
	// Resolve answers questions about any repositories, in their order. Questions about one repository see one state of it.
	Resolve(ctx context.Context, questions []Question) ([]Result, error)
	// Watch tells of each change, whoever made it, until ctx ends or send fails. It begins with one event for each repository.
	Watch(ctx context.Context, from []Known, send func(Event) error) error
}

// Resolver answers questions. Safe for concurrent use.
type Resolver interface {
	// Resolve answers questions in their order. The error says why none could be answered.
	Resolve(ctx context.Context, questions []Question) ([]Result, error)
}
