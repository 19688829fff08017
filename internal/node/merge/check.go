package merge

import (
	"context"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// Pair is a merge of two commits.
type Pair struct {
	Target, Source git.ObjectID
	AllowUnrelated bool
}

// Check is the result of a merge.
type Check struct {
	UpToDate    bool         // the target has all commits of the source
	FastForward bool         // the source has all commits of the target
	Tree        git.ObjectID // zero with conflicts, UpToDate and FastForward
	Conflicts   []Conflict
	More        bool // there are more conflicts
	RenameLimit bool // the search for renames was limited
}

// Checker returns a function that merges pairs of commits of a repository, which the caller holds, one after the other.
// Its error is Precondition for unrelated histories that are not allowed.
func (m *Merger) Checker(r *repo.Repo) (func(context.Context, Pair) (Check, error), error) {
	v, err := newView(r)
	return func(ctx context.Context, p Pair) (Check, error) { return m.pair(ctx, v, p) }, err
}

// pair merges two commits.
func (m *Merger) pair(ctx context.Context, v *view, p Pair) (Check, error) {
	found, bases, err := v.relation(ctx, p)
	if err != nil || found.UpToDate || found.FastForward {
		return found, err
	}
	return m.commits(ctx, v, bases, p.Target, p.Source)
}

// relation reports whether one of the commits has the other one, and returns their merge bases.
func (v *view) relation(ctx context.Context, p Pair) (c Check, bases []git.ObjectID, err error) {
	bases, err = v.repo.Graph.MergeBases(ctx, p.Target, []git.ObjectID{p.Source}, v.shallow)
	if err == nil && len(bases) == 0 && !p.AllowUnrelated {
		err = fault.InField("source", fault.New(fault.Precondition,
			"it has no commit in common with the target: set allow_unrelated to merge unrelated histories"))
	}
	c.UpToDate = slices.Contains(bases, p.Source)
	c.FastForward = !c.UpToDate && slices.Contains(bases, p.Target)
	return c, bases, err
}
