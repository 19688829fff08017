package storage

import (
	"context"
	"errors"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/inspect"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// NewPatch is a patch to apply.
type NewPatch struct {
	inspect.ApplyRequest
	Target edit.Target
	Start  string       // the revision at which a new branch starts; "": it has no commit
	Change write.Change // without Build
}

// PatchResult is the result of a patch. Without commits it has conflicts.
type PatchResult struct {
	inspect.Applied
	Version  git.Version
	Repeated bool // an earlier call with the same key made the commit
	Messages []string
}

// errNoChange ends a Build whose result is not a change.
var errNoChange = errors.New("nothing to change")

// ApplyPatch makes commits from a diff or mails; see inspect.Inspector.Apply. Errors are those of it, of
// edit.Target.Resolve and of Write.
func (n *Node) ApplyPatch(ctx context.Context, path git.RepoPath, q NewPatch) (result PatchResult, err error) {
	isMade, base := false, git.ObjectID{}
	build := func(ctx context.Context, s write.State) (plan write.Plan, err error) {
		old, err := s.Ref(q.Target.Branch)
		if err != nil {
			return plan, err
		}
		commit, err := n.keys.Find(ctx, s, q.Target.Branch, old, q.Header.Key)
		if err != nil {
			return plan, err
		}
		if result.Repeated = !commit.IsZero(); result.Repeated {
			if result.Applied, err = repeatedPatch(s, commit); err == nil {
				err = errNoChange
			}
			return plan, err
		}
		at, err := q.Target.Resolve(s)
		if err != nil {
			return plan, err
		}
		if !isMade || base != at.Base {
			if result.Applied, err = n.inspector.Apply(ctx, s, at.Base, &q.ApplyRequest); err != nil {
				return plan, err
			}
			isMade, base = true, at.Base
		}
		if len(result.Conflicts) > 0 {
			return plan, errNoChange
		}
		return write.Plan{Objects: result.Objects, Updates: []receivepack.Update{{Ref: q.Target.Branch, Old: at.Old,
			New: result.Commits[len(result.Commits)-1]}}}, nil
	}
	// Other changes wait for Build, and seldom change the branch before it.
	if err = n.beforeWrite(ctx, path, &q, build); err == nil {
		change := q.Change
		change.Build = build
		var written write.Result
		written, err = n.Write(ctx, path, change)
		result.Version, result.Messages = written.Version, written.Messages
	}
	if !errors.Is(err, errNoChange) {
		return result, err
	}
	h, _, version, err := n.snapshot(ctx, path)
	if err == nil {
		result.Version = version
		n.release(h)
	}
	return result, err
}

// beforeWrite calls build with the present state, in which it also resolves the start of a new branch.
func (n *Node) beforeWrite(ctx context.Context, path git.RepoPath, q *NewPatch,
	build func(context.Context, write.State) (write.Plan, error)) error {
	h, err := n.acquireCurrent(ctx, path)
	if err != nil {
		return err
	}
	defer n.release(h)
	s, err := newWriteState(ctx, receivepack.Target{Repo: h.Repo})
	if err != nil {
		return err
	}
	defer s.done()
	if err := h.Refresh(); err != nil {
		return err
	}
	if q.Start != "" {
		names, err := n.lookups.Names(ctx, h.Repo)
		if err != nil {
			return err
		}
		defer names.Close()
		if q.Target.Start, err = names.Commit(q.Start); err != nil {
			return fault.InField("start", err)
		}
	}
	_, err = build(ctx, s)
	return err
}

// repeatedPatch returns the commit that an earlier call has made.
func repeatedPatch(s write.State, id git.ObjectID) (made inspect.Applied, err error) {
	_, data, err := s.Read(id, 0)
	if err != nil {
		return made, err
	}
	c, err := pack.ParseCommit(data, s.Repo().Format)
	return inspect.Applied{Tree: c.Tree, Commits: []git.ObjectID{id}}, err
}
