package lookup

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// Names resolves the revisions and paths of a call whose work others do, such as Git. It keeps the objects of the
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

// Parent returns the first parent of a commit; zero if it has none.
func (n *Names) Parent(commit git.ObjectID) (git.ObjectID, error) {
	shallow, err := n.c.repo.ShallowSet()
	if err != nil {
		return git.ObjectID{}, err
	}
	return n.c.repo.Graph.Parent(n.c.ctx, commit, 1, shallow)
}

// Tree returns the root directory of a revision, and the revision's own ID: that of a commit or a tree.
func (n *Names) Tree(revision string) (id, tree git.ObjectID, err error) {
	id, typ, err := n.c.resolve(revision)
	if err != nil || typ == git.Tree {
		return id, id, err
	}
	tree, err = n.c.treeOf(id.String())
	return id, tree, err
}

// File checks that a path is a file, and not a directory or a submodule.
func (n *Names) File(in PathIn) error {
	e, err := n.c.find(in)
	if err == nil && (e.mode == pack.ModeTree || e.mode == pack.ModeGitlink) {
		err = fault.New(fault.Invalid, "path %q is not a file", fault.Short(in.Path))
	}
	return err
}
