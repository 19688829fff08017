package merge

import (
	"context"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

const (
	// maxKnown is the maximum number of remembered merges, and maxKnownConflicts that of the conflicts of one.
	maxKnown          = 4096
	maxKnownConflicts = 64
)

// knownKey identifies a merge. The result depends on nothing else if no repository lacks a part of the history.
type knownKey struct {
	target, source git.ObjectID
	allowUnrelated bool
}

// Check is the result of a merge that is not written.
type Check struct {
	UpToDate    bool         // the target has all commits of the source
	FastForward bool         // the source has all commits of the target
	Tree        git.ObjectID // of a merge without conflicts; zero with UpToDate and FastForward
	Conflicts   []Conflict
	More        bool // there are more conflicts
	RenameLimit bool // the search for renames was limited
}

// Check merges two commits of a repository, which the caller holds. The error is Precondition for unrelated histories
// that are not allowed.
func (m *Merger) Check(ctx context.Context, r *repo.Repo, target, source git.ObjectID, allowUnrelated bool) (Check,
	error) {
	return m.pair(ctx, newView(r), knownKey{target, source, allowUnrelated}, false)
}

// pair merges two commits. With needsTree, the objects of a merged tree are in the view.
func (m *Merger) pair(ctx context.Context, v *view, k knownKey, needsTree bool) (Check, error) {
	shallow, err := v.repo.ShallowSet()
	if err != nil {
		return Check{}, err
	}
	found, ok := m.known.Get(k)
	if ok && len(shallow) == 0 && (!needsTree || found.Tree.IsZero()) {
		return found, nil
	}
	found, bases, err := relation(ctx, v, k, shallow)
	if err != nil {
		return Check{}, err
	}
	if !found.UpToDate && !found.FastForward {
		o, err := m.commits(ctx, v, bases, k.target, k.source)
		if err != nil {
			return Check{}, err
		}
		found = Check{Tree: o.tree, Conflicts: o.conflicts, More: o.more, RenameLimit: o.renameLimit}
	}
	if len(shallow) == 0 && len(found.Conflicts) <= maxKnownConflicts {
		m.known.Add(k, found)
	}
	return found, nil
}

// relation reports whether one of the commits has the other one, and returns their merge bases.
func relation(ctx context.Context, v *view, k knownKey, shallow graph.Commits) (c Check, bases []git.ObjectID,
	err error) {
	bases, err = v.repo.Graph.MergeBases(ctx, k.target, []git.ObjectID{k.source}, shallow)
	if err == nil && len(bases) == 0 && !k.allowUnrelated {
		err = fault.InField("source", fault.New(fault.Precondition,
			"it has no commit in common with the target: set allow_unrelated to merge unrelated histories"))
	}
	c.UpToDate = slices.Contains(bases, k.source)
	c.FastForward = !c.UpToDate && slices.Contains(bases, k.target)
	return c, bases, err
}
