package storage

import (
	"context"
	"errors"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/inspect"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// PatchResult is the result of a patch. It has either commits or conflicts. Of a repeated call it has the last commit.
type PatchResult struct {
	inspect.Applied
	Made  edit.Made
	Write write.Result
}

// errConflicts ends a Build whose patch has conflicts.
var errConflicts = errors.New("the patch has conflicts")

// ApplyPatch makes commits from a diff or mails instead of changes; see inspect.Inspector.Apply. Errors are those of it
// and of MakeCommit.
func (n *Node) ApplyPatch(ctx context.Context, path git.RepoPath, c NewCommit, q inspect.ApplyRequest) (
	result PatchResult, err error) {
	q.Check = func(ctx context.Context, s write.State, ids []git.ObjectID) error {
		visible, err := n.server.Visible(ctx, s.Repo(), n.walk(ctx, ""), ids...)
		if err == nil && !visible {
			err = fault.New(fault.NotFound, "it names a blob that no ref reaches: send the content instead")
		}
		return err
	}
	isApplied, base := false, git.ObjectID{}
	c.build = func(ctx context.Context, r *edit.Request, s write.State, mayWork bool) (plan write.Plan, made edit.Made,
		err error) {
		if made, err = r.Repeated(ctx, s, n.keys); made.Repeated || err != nil {
			return plan, made, err
		}
		at, err := r.Target.Resolve(s)
		if err != nil {
			return plan, made, err
		}
		if !isApplied || base != at.Base {
			if !mayWork { // other changes wait
				return plan, made, errBranchMoved
			}
			if result.Applied, err = n.inspector.Apply(ctx, s, at.Base, &q); err != nil {
				return plan, made, err
			}
			isApplied, base = true, at.Base
		}
		if len(result.Conflicts) > 0 {
			return plan, made, errConflicts
		}
		made = edit.Made{Commit: result.Commits[len(result.Commits)-1], Tree: result.Tree}
		return write.Plan{Objects: result.Objects, Updates: []receivepack.Update{{Ref: r.Target.Branch, Old: at.Old,
			New: made.Commit}}}, made, nil
	}
	result.Made, result.Write, err = n.MakeCommit(ctx, path, c)
	if errors.Is(err, errConflicts) {
		return result, nil
	}
	if result.Made.Repeated {
		result.Commits = []git.ObjectID{result.Made.Commit}
	}
	return result, err
}
