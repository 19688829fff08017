package uploadpack

import (
	"context"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node"
)

// visibleTips lists what the refs point at, sorted.
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

// ownTips lists what the refs point at, sorted; the hidden ones too where the policy allows to want their tips or what
// they reach: as with git, either does.
func (f *fetch) ownTips() ([]git.ObjectID, error) {
	tips, err := f.visibleTips()
	if policy := f.repo.Policy(); err != nil || !f.repo.HidesRefs() || !policy.AllowTip && !policy.AllowReachable {
		return tips, err
	}
	tips, _, err = f.allTips.get(f.snapshot, func() ([]git.ObjectID, bool, error) {
		all := slices.Clone(tips)
		err := f.snapshot.EachHidden(func(ref refs.Ref) error { all = append(all, ref.ID); return nil })
		return protocol.SortIDs(all), true, err
	})
	return tips, err
}

// allowedByV2 is the rule of version 2: as git, nothing but what holds for the repository as a whole.
func (f *fetch) allowedByV2(ctx context.Context) error {
	if rule := f.wantRule(f.repo, f.session); rule != WantsAny {
		return f.checkReachable(ctx, rule, f.wants)
	}
	return nil
}

// allowedByV0 returns the rule of versions 0 and 1, which never allows more than that of version 2. It allows
// advertised objects. It also allows objects that they reach, which a client without state may have from an earlier
// advertisement, and those that the repository's policy adds (gitprotocol-capabilities(5), "allow-tip-sha1-in-want").
func (f *fetch) allowedByV0(session node.Session) func(context.Context) error {
	return func(ctx context.Context) error {
		rule, policy := f.wantRule(f.repo, f.session), f.repo.Policy()
		if rule == WantsAny && policy.AllowAny {
			return nil
		}
		tips, err := f.ownTips()
		if err != nil {
			return err
		}
		rest := others(f.wants, tips)
		switch {
		case len(rest) == 0:
			return nil
		case rule == WantsTip || !session.Stateless && !policy.AllowReachable:
			return notAllowed(rest[0])
		case rule == WantsAny:
			if rest, err = f.commitsOf(rest); err != nil {
				return err
			}
		}
		return f.reachableFrom(ctx, tips, rest)
	}
}

// others gives the IDs that are not in a sorted list.
func others(ids, sorted []git.ObjectID) (rest []git.ObjectID) {
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

// checkReachable allows only objects that a visible ref points at or, with WantsReachable, reaches.
func (f *fetch) checkReachable(ctx context.Context, rule Wants, ids []git.ObjectID) error {
	tips, err := f.visibleTips()
	if err != nil {
		return err
	}
	rest := others(ids, tips)
	if len(rest) == 0 {
		return nil
	}
	if rule == WantsTip {
		return notAllowed(rest[0])
	}
	return f.reachableFrom(ctx, tips, rest)
}

func notAllowed(id git.ObjectID) error {
	return fault.New(fault.Denied, "upload-pack: not our ref %s", id)
}

// reachableFrom fails if the tips do not reach all wants.
func (f *fetch) reachableFrom(ctx context.Context, tips, wants []git.ObjectID) error {
	var commits, others []git.ObjectID
	for _, id := range wants {
		typ, _, err := f.repo.Objects.Header(id)
		switch {
		case err != nil:
			return err
		case typ == git.Commit:
			commits = append(commits, id)
		default:
			others = append(others, id)
		}
	}
	if len(commits) > 0 {
		first, found, err := f.repo.Graph.Unreachable(ctx, tips, commits, f.serverShallow)
		if err != nil {
			return err
		}
		if found {
			return notAllowed(first)
		}
	}
	if len(others) > 0 {
		return f.insideTrees(ctx, tips, others)
	}
	return nil
}
