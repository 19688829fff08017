package uploadpack

import (
	"context"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// visibleTips lists the objects that the refs point to, sorted.
func (f *fetch) visibleTips() ([]git.ObjectID, error) {
	tips, _, err := f.tips.get(f.snapshot, func() ([]git.ObjectID, bool, error) {
		var ids []git.ObjectID
		if head := f.snapshot.Head(); !head.ID.IsZero() {
			ids = append(ids, head.ID)
		}
		err := f.snapshot.Each("", func(ref refs.Ref) error { ids = append(ids, ref.ID); return nil })
		return protocol.SortIDs(ids), true, err
	})
	return tips, err
}

// wantableTips lists the objects that the refs point to, sorted. As with git, it includes hidden refs if the policy
// allows clients to want tips or reachable objects.
func (f *fetch) wantableTips() ([]git.ObjectID, error) {
	if policy := f.repo.Policy(); policy.AllowTip || policy.AllowReachable {
		return f.everyTip()
	}
	return f.visibleTips()
}

// everyTip lists the objects that all refs point to, hidden ones as well, sorted.
func (f *fetch) everyTip() ([]git.ObjectID, error) {
	tips, err := f.visibleTips()
	if err != nil || !f.repo.HidesRefs() {
		return tips, err
	}
	tips, _, err = f.allTips.get(f.snapshot, func() ([]git.ObjectID, bool, error) {
		all := slices.Clone(tips)
		err := f.snapshot.EachHidden(func(ref refs.Ref) error { all = append(all, ref.ID); return nil })
		return protocol.SortIDs(all), true, err
	})
	return tips, err
}

// checkWantsV2 applies the rule of version 2, which is the repository's.
func (f *fetch) checkWantsV2(ctx context.Context) error {
	if rule := f.wantRule(f.repo, f.session); rule != WantsAny {
		return f.checkReachable(ctx, rule, f.wants)
	}
	return nil
}

// checkWantsV0 applies the rule of versions 0 and 1, which never allows more than that of version 2. It allows
// advertised objects. It also allows objects that they reach, which a client without state may have from an earlier
// advertisement, and those that the repository's policy adds (gitprotocol-capabilities(5), "allow-tip-sha1-in-want").
func (f *fetch) checkWantsV0(ctx context.Context) error {
	rule, policy := f.wantRule(f.repo, f.session), f.repo.Policy()
	if rule == WantsAny && policy.AllowAny {
		return nil
	}
	tips, err := f.wantableTips()
	if err != nil {
		return err
	}
	rest := notIn(f.wants, tips)
	switch {
	case len(rest) == 0:
		return nil
	case rule == WantsTip || !f.session.Stateless && !policy.AllowReachable:
		return errForbiddenWant(rest[0])
	case rule == WantsAny:
		if rest, err = f.commitsOf(rest); err != nil {
			return err
		}
	}
	return f.checkReachableFrom(ctx, f.withFormer(tips), rest)
}

// notIn returns the IDs that are not in a sorted list.
func notIn(ids, sorted []git.ObjectID) (rest []git.ObjectID) {
	for _, id := range ids {
		if _, in := slices.BinarySearchFunc(sorted, id, git.ObjectID.Compare); !in {
			rest = append(rest, id)
		}
	}
	return rest
}

// commitsOf returns the commits that objects are or peel to. In version 0 git does not require that a wanted tree or
// blob is reachable.
func (f *fetch) commitsOf(ids []git.ObjectID) (commits []git.ObjectID, err error) {
	for _, id := range ids {
		peeled, typ, err := f.repo.Graph.Peel(id)
		if err != nil {
			return nil, err
		}
		if typ == git.Commit {
			commits = append(commits, peeled)
		}
	}
	return commits, nil
}

// checkReachable returns an error unless visible refs point to all objects or, with WantsReachable, reach them. For a
// fetch, former values of refs count as well, because partial clones lack objects of commits that they have.
func (f *fetch) checkReachable(ctx context.Context, rule Wants, ids []git.ObjectID) error {
	if all, err := f.areTips(ids); err != nil || all {
		return err
	}
	tips, err := f.visibleTips()
	if err != nil {
		return err
	}
	rest := notIn(ids, tips)
	switch {
	case len(rest) == 0:
		return nil
	case rule == WantsTip:
		return errForbiddenWant(rest[0])
	}
	return f.checkReachableFrom(ctx, f.withFormer(tips), rest)
}

// withFormer adds the former values of refs to tips, for fetches only.
func (f *fetch) withFormer(tips []git.ObjectID) []git.ObjectID {
	if f.request == nil {
		return tips
	}
	return slices.Concat(tips, f.former.after(f.repo, f.snapshot))
}

// areTips reports whether visible refs point to all objects. It may miss some if the refs have a Source: then it needs
// no list of all tips, which would have to be made after each push.
func (f *fetch) areTips(ids []git.ObjectID) (bool, error) {
	if f.snapshot.HasSource() {
		return f.snapshot.HasTips(ids)
	}
	tips, err := f.visibleTips()
	return err == nil && len(notIn(ids, tips)) == 0, err
}

func errForbiddenWant(id git.ObjectID) error {
	return fault.New(fault.Denied, "upload-pack: not our ref %s", id)
}

// checkReachableFrom returns an error unless the tips reach all wants.
func (f *fetch) checkReachableFrom(ctx context.Context, tips, wants []git.ObjectID) error {
	var commits, rest []git.ObjectID
	for _, id := range wants {
		typ, _, err := f.repo.Objects.Header(id)
		switch {
		case err != nil:
			return err
		case typ == git.Commit:
			commits = append(commits, id)
		default:
			rest = append(rest, id)
		}
	}
	if len(commits) > 0 {
		first, found, err := f.repo.Graph.FirstUnreachable(ctx, tips, commits, f.serverShallow)
		if err != nil {
			return err
		}
		if found {
			return errForbiddenWant(first)
		}
	}
	if len(rest) > 0 {
		return f.checkInsideTrees(ctx, tips, rest)
	}
	return nil
}

// borrows reports whether some objects of the repository may be those of others, whose existence is a secret.
func (f *fetch) borrows() bool { return f.repo.Objects.HasAlternates() && !f.repo.Policy().OwnAny }

// foreign returns the IDs that may name objects of other repositories only. If this one borrows objects, these exist
// and none of its refs reaches them. Unless exact, it may also return others; see graph.Unreachable. The cost is the
// number of visited commits and tips.
func (f *fetch) foreign(ctx context.Context, ids []git.ObjectID, exact bool) (hidden graph.Commits, cost int,
	err error) {
	if len(ids) == 0 || !f.borrows() {
		return nil, 0, nil
	}
	var found []git.ObjectID
	err = f.has(ctx, ids, func(id git.ObjectID, ok bool) error {
		if !ok {
			return nil
		}
		found = append(found, id)
		return f.reserve(foreignCost)
	})
	if err != nil || len(found) == 0 {
		return nil, 0, err
	}
	tips, err := f.everyTip()
	if err != nil {
		return nil, 0, err
	}
	tips = f.withFormer(tips)
	hidden, visited, err := f.repo.Graph.Unreachable(ctx, tips, found, f.serverShallow, exact)
	return hidden, visited + len(tips), err
}
