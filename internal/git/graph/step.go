package graph

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// TypeOf returns an object's type, and the target if it is a tag. The error is NotFound if the object does not exist.
func (g *Graph) TypeOf(ctx context.Context, id git.ObjectID) (typ git.ObjectType, target git.ObjectID, err error) {
	if err := g.exists(id); err != nil {
		return 0, target, err
	}
	err = g.run(ctx, nil, func(w *walk) error {
		o, h, err := w.look(id)
		typ, target = o.typ, h.target
		return err
	})
	return typ, target, err
}

// Ancestor goes n times from a commit to its first parent, fewer times if it reaches a root. It returns the last commit
// and the number of steps. Shallow commits have no parents. The error is Invalid if id is not a commit.
func (g *Graph) Ancestor(ctx context.Context, id git.ObjectID, n int, shallow Commits) (ancestor git.ObjectID,
	steps int, err error) {
	err = g.run(ctx, nil, func(w *walk) error {
		node, err := w.start(id)
		for steps = 0; err == nil && steps < n; steps++ {
			var parents []uint32
			if parents, err = w.parentsUnless(shallow, node); err != nil || len(parents) == 0 {
				break
			}
			node = parents[0]
			err = w.step()
		}
		if err == nil {
			err = w.load(node)
		}
		if err == nil {
			ancestor = w.id(node)
		}
		return err
	})
	return ancestor, steps, err
}

// Parent returns a commit's n-th parent, the first being 1, or the zero ID if it has fewer. Shallow commits have no
// parents. The error is Invalid if id is not a commit.
func (g *Graph) Parent(ctx context.Context, id git.ObjectID, n int, shallow Commits) (parent git.ObjectID, err error) {
	err = g.run(ctx, nil, func(w *walk) error {
		node, err := w.start(id)
		if err != nil {
			return err
		}
		parents, err := w.parentsUnless(shallow, node)
		if err == nil && n <= len(parents) {
			parent = w.id(parents[n-1])
		}
		return err
	})
	return parent, err
}

// start returns the node of a commit.
func (w *walk) start(id git.ObjectID) (uint32, error) {
	node, ok, err := w.commit(id)
	if err == nil && !ok {
		err = fault.New(fault.Invalid, "object %s is not a commit", id)
	}
	return node, err
}

// parentsUnless returns the real parents of a commit that is not shallow. For a walk over few commits it costs less
// than grafts.
func (w *walk) parentsUnless(shallow Commits, node uint32) ([]uint32, error) {
	if len(shallow) > 0 && shallow.Has(w.id(node)) {
		return nil, nil
	}
	return w.realParents(node)
}
