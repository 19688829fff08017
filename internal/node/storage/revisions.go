package storage

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/watch"
)

// MaxRevisions is the maximum number of revisions in one call of ResolveRevisions.
const MaxRevisions = 10_000

// ResolveRevisions resolves revisions of any repositories (lookup.Revisions), in their order. Revisions of one
// repository see one state of it. Each has its own error. The error is Invalid for too many revisions, or that of ctx.
func (n *Node) ResolveRevisions(ctx context.Context, questions []node.Question) ([]node.Result, error) {
	if len(questions) > MaxRevisions {
		return nil, fault.New(fault.Invalid, "too many revisions: got %d, one call can resolve %d", len(questions),
			MaxRevisions)
	}
	results := make([]node.Result, len(questions))
	seen := make(map[string]state)
	answer := func(indexes []int) error {
		path := questions[indexes[0]].Repository
		h, snap, version, err := n.snapshot(ctx, path)
		if err != nil {
			for _, i := range indexes {
				results[i].Err = err
			}
			return ctx.Err()
		}
		defer n.release(h)
		snap, version = oneState(seen, snap, version)
		done, err := h.Hold(ctx)
		if err != nil {
			for _, i := range indexes {
				results[i].Err = err
			}
			return ctx.Err()
		}
		defer done()
		revisions := n.lookups.Revisions(ctx, h.Repo, snap)
		revisions.Own = true
		for _, i := range indexes {
			found, err := revisions.Resolve(questions[i].Revision)
			if err != nil {
				results[i].Err = err
				continue
			}
			results[i].Answer = node.Answer{ID: found.ID, Type: found.Type, Ref: string(found.Ref), Version: version}
		}
		return ctx.Err()
	}
	for _, group := range groupByPath(len(questions), func(i int) git.RepoPath { return questions[i].Repository }) {
		if err := answer(group); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// state is one state of a repository's refs.
type state struct {
	snap    *refs.Snapshot
	version git.Version
}

// oneState returns the state in which a call first saw a repository. The key of seen is the incarnation, because two
// paths may lead to one repository.
func oneState(seen map[string]state, snap *refs.Snapshot, version git.Version) (*refs.Snapshot, git.Version) {
	if s, ok := seen[version.Incarnation]; ok {
		return s.snap, s.version
	}
	seen[version.Incarnation] = state{snap, version}
	return snap, version
}

// Resolver makes a Node a node.Resolver.
type Resolver struct{ *Node }

var _ node.Resolver = Resolver{}

// Resolve implements node.Resolver.
func (r Resolver) Resolve(ctx context.Context, questions []node.Question) ([]node.Result, error) {
	return r.ResolveRevisions(ctx, questions)
}

// Watch is Node.Watch without the changes. It also reports events with the version that the caller knows.
func (r Resolver) Watch(ctx context.Context, from []node.Known, send func(node.Event) error) error {
	watched := make([]watch.From, len(from))
	for i, f := range from {
		watched[i].Path = f.Repository
		if f.Version != (git.Version{}) {
			watched[i].Known = &f.Version
		}
	}
	return r.Node.Watch(ctx, watched, func(e watch.Event) error {
		return send(node.Event{Repository: e.Path, Version: e.Version, Gone: e.Gone})
	})
}
