package uploadpack

import (
	"context"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// visibleTips lists what the refs point at, sorted.
func (f *fetch) visibleTips() ([]git.ObjectID, error) {
	return f.tips.get(f.snapshot, func() ([]git.ObjectID, error) {
		var ids []git.ObjectID
		if head := f.snapshot.Head(); !head.ID.IsZero() {
			ids = append(ids, head.ID)
		}
		err := f.snapshot.Each("", func(ref refs.Ref) error { ids = append(ids, ref.ID); return nil })
		return protocol.SortIDs(ids), err
	})
}

// checkReachable allows only wants that a visible ref points at or, with WantsReachable, reaches.
func (f *fetch) checkReachable(ctx context.Context, rule Wants) error {
	tips, err := f.visibleTips()
	if err != nil {
		return err
	}
	var rest []git.ObjectID
	for _, id := range f.wants {
		if _, isTip := slices.BinarySearchFunc(tips, id, git.ObjectID.Compare); !isTip {
			rest = append(rest, id)
		}
	}
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

// reachableFrom sees to it that tips reach every one of the wants.
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
