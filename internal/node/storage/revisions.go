package storage

import (
	"context"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/watch"
)

// ResolveRevisions resolves revisions of any repositories (lookup.Revisions), in their order. Revisions of one
// repository see one state of it. Each has its own error. The error is Invalid for too many revisions, or that of ctx.
func (n *Node) ResolveRevisions(ctx context.Context, questions []node.Question) ([]node.Result, error) {
	results := make([]node.Result, len(questions))
	path := func(i int) git.RepoPath { return questions[i].Repository }
	err := n.batch(ctx, "revisions", len(questions), path, func(group []int, h *handle, at state, err error) {
		done := func() {}
		if err == nil {
			done, err = h.Hold(ctx)
		}
		if err != nil {
			for _, i := range group {
				results[i].Err = err
			}
			return
		}
		defer done()
		revisions := n.lookups.Revisions(ctx, h.Repo, at.snap)
		revisions.Own = true
		for _, i := range group {
			found, err := revisions.Resolve(questions[i].Revision)
			if err != nil {
				results[i].Err = err
				continue
			}
			results[i].Answer = node.Answer{ID: found.ID, Type: found.Type, Ref: string(found.Ref), Version: at.version,
				Purges: h.PurgeMark()}
		}
	})
	return results, err
}

// MaxNames is the maximum number of names in one call of ResolveMany, and of revisions in one of ResolveRevisions.
const MaxNames = 10_000

// state is one state of a repository's refs.
type state struct {
	snap    *refs.Snapshot
	version git.Version
}

// batch calls answer once for each repository of count questions, with their indexes and the state of the repository,
// or with the error of opening it.
func (n *Node) batch(ctx context.Context, what string, count int, path func(i int) git.RepoPath,
	answer func(group []int, h *handle, at state, err error)) error {
	if count > MaxNames {
		return fault.New(fault.Invalid, "too many %s: got %d, one call can resolve %d", what, count, MaxNames)
	}
	order := make([]int, count)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return strings.Compare(path(i).String(), path(j).String()) })
	seen := make(map[string]state) // by incarnation, because two paths may lead to one repository
	for begin, end := 0, 0; begin < count && ctx.Err() == nil; begin = end {
		for end < count && path(order[end]) == path(order[begin]) {
			end++
		}
		h, snap, version, err := n.snapshot(ctx, path(order[begin]))
		if err != nil {
			if ctx.Err() == nil {
				answer(order[begin:end], nil, state{}, err)
			}
			continue
		}
		at, ok := seen[version.Incarnation]
		if !ok {
			at = state{snap, version}
			seen[version.Incarnation] = at
		}
		answer(order[begin:end], h, at, nil)
		n.release(h)
	}
	return ctx.Err()
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
