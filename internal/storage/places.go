package storage

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/receivepack"
	"github.com/packhorse-git/packhorse/internal/repo"
)

// Places finds and changes the repositories of a node whose directories are copies of those in a store. Paths have no
// ".git" at their end. It is safe for concurrent use.
type Places interface {
	// Acquire returns the Place of a repository, which the caller has to release. Its directory has HEAD, config and the
	// directory of objects then, but perhaps no packs. Acquire needs no I/O for a known path: the Place finds out whether
	// the repository still has this path. Errors: NotFound and Unavailable.
	Acquire(ctx context.Context, path git.RepoPath) (Place, error)
	// List returns at most limit paths that begin with prefix and come after a path, in a fixed order.
	List(ctx context.Context, prefix, after string, limit int) ([]git.RepoPath, error)
	// Create creates an empty repository whose HEAD names a branch. Errors: Exists, Unavailable.
	Create(ctx context.Context, path git.RepoPath, format git.ObjectFormat, head git.RefName) error
	// Import creates a repository from a bare repository in a directory, which it may change.
	Import(ctx context.Context, path git.RepoPath, dir string) error
	// Delete deletes a repository. If incarnation is not "", it must be the repository's ID; otherwise NotFound.
	Delete(ctx context.Context, path git.RepoPath, incarnation string) error
	// Rename gives a repository another path. Errors: NotFound, Exists, Unavailable.
	Rename(ctx context.Context, from, to git.RepoPath) error
	// Ready returns why repositories cannot be served: the store cannot be reached. Nil: they can.
	Ready() error
}

// Place is one repository of Places. It is safe for concurrent use. If a check for changes finds that the repository
// was deleted or has another path, the error is NotFound, also of later calls.
type Place interface {
	repo.Place
	Dir() string // the Git directory
	// Push returns the shadow for a push.
	Push(ctx context.Context) (receivepack.Shadow, error)
	// Counts returns the objects and packs of the latest known state, whether they are here or not.
	Counts() pack.Counts
	// Maintain calls repack with a copy of the repository's directory that has all packs, and then replaces the packs of
	// the repository by those in the copy.
	Maintain(ctx context.Context, repack func(ctx context.Context, dir string) error) error
	// SetHead sets HEAD to a branch, which need not exist.
	SetHead(ctx context.Context, branch git.RefName) error
	Release() // ends the use of the Place
}
