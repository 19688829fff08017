package lookup

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// Names resolves the revisions of a call whose work others do, such as Git. It keeps the objects of the
// repository until Close. It is used by one goroutine.
type Names struct{ c *operation }

// Names begins a call on the current state of the repository.
func (l *Reader) Names(ctx context.Context, r *repo.Repo) (*Names, error) {
	c, err := l.begin(ctx, r)
	if err != nil {
		return nil, err
	}
	return &Names{c}, nil
}

// Close ends the call.
func (n *Names) Close() { n.c.end() }

// Commit returns the commit that a revision names.
func (n *Names) Commit(revision string) (git.ObjectID, error) { return n.c.commitOf(revision) }

// Treeish returns the commit or the tree that a revision names.
func (n *Names) Treeish(revision string) (git.ObjectID, error) {
	id, typ, err := n.c.resolve(revision)
	if err == nil && typ == git.Blob {
		err = fault.New(fault.Invalid, "revision %.200q is a blob, which has no directories", revision)
	}
	return id, err
}

// Parent returns the first parent of a commit; zero if it has none, or is a tree.
func (n *Names) Parent(treeish git.ObjectID) (git.ObjectID, error) {
	commit, typ, err := n.c.repo.Graph.Peel(treeish)
	if err != nil || typ != git.Commit {
		return git.ObjectID{}, err
	}
	shallow, err := n.c.repo.ShallowSet()
	if err != nil {
		return git.ObjectID{}, err
	}
	return n.c.repo.Graph.Parent(n.c.ctx, commit, 1, shallow)
}
