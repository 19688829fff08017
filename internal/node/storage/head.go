package storage

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// SetHead sets HEAD to a branch, given by its full name, and reports whether that branch exists. If there is no error,
// the change is on disk and later requests see it. The error is Aborted if HEAD does not name the expected branch.
// Other errors: Denied if the repository is read-only, Invalid if the name is not a branch's, Exhausted while HEAD
// is locked, and those of the repository. An empty expected branch means any.
func (n *Node) SetHead(ctx context.Context, path git.RepoPath, branch, expected git.RefName) (exists bool, err error) {
	defer func() { n.changedRepository("set_head", path, err, "branch", string(branch)) }()
	if !strings.HasPrefix(string(branch), places.BranchPrefix) {
		return false, fault.New(fault.Invalid, "HEAD: got %q, want a branch, refs/heads/NAME", fault.Short(branch))
	}
	h, err := n.acquireCurrent(ctx, path)
	if err != nil {
		return false, err
	}
	defer n.release(h)
	if err := h.CheckWritable(); err != nil {
		return false, err
	}
	err = n.record(ctx, event.Configure, path, func() error {
		done, err := h.place.SetHead(ctx, branch, func() (bool, error) { return h.checkHead(ctx, branch, expected) })
		if err == nil && !done {
			return errUnchanged
		}
		return err
	})
	if err != nil {
		return false, err
	}
	n.RefsChanged(path)
	snap, err := h.Refs.SnapshotOf(ctx, nil)
	if err != nil {
		return false, err
	}
	_, exists, err = snap.Unhidden().Lookup(branch)
	return exists, err
}

// checkHead reports whether HEAD has to be changed to name a branch. It returns an error if HEAD does not name the
// expected one.
func (h *handle) checkHead(ctx context.Context, branch, expected git.RefName) (bool, error) {
	snap, err := h.Refs.Snapshot(ctx)
	if err != nil {
		return false, err
	}
	head := snap.Unhidden().Head()
	actual := cmp.Or(string(head.Target), head.ID.String())
	if expected == "" || actual == string(expected) {
		return head.Target != branch, nil
	}
	return false, &fault.Error{Kind: fault.Aborted, Msg: "HEAD is " + fault.Short(actual) + ", expected " +
		fault.Short(expected), Mismatches: []fault.Mismatch{{Name: "HEAD", Expected: string(expected), Actual: actual}}}
}

// isUnborn reports whether HEAD names a branch that does not exist, not even as a hidden ref.
func isUnborn(snap *refs.Snapshot) bool {
	head := snap.Unhidden().Head()
	return head.Target != "" && head.ID.IsZero()
}

// isEmpty reports whether HEAD is unborn and there is no branch at all.
func isEmpty(snap *refs.Snapshot) (bool, error) {
	if !isUnborn(snap) {
		return false, nil
	}
	empty := true
	err := snap.Unhidden().Each(places.BranchPrefix, func(refs.Ref) error {
		empty = false
		return refs.ErrStop
	})
	return empty, err
}

// adoptHead sets the unborn HEAD of a repository to one of the branches that its first push created. It does nothing if
// HEAD's own branch is among them. If several pushes are first, one of them does so.
func (n *Node) adoptHead(ctx context.Context, h *handle, path git.RepoPath, updates []receivepack.Update) {
	branch := receivepack.FirstBranch(updates, "")
	if branch == "" {
		return
	}
	done, err := h.place.SetHead(ctx, branch, func() (bool, error) {
		snap, err := h.Refs.Snapshot(ctx)
		return err == nil && isUnborn(snap), err
	})
	if done || err != nil {
		n.changedRepository("set_head", path, err, "branch", string(branch))
	}
}

// danglingInterval is how often the dangling HEAD of one repository is logged.
const danglingInterval = time.Hour

// logDangling logs that clones of a repository check out nothing although it has branches. It does so once an hour for
// each repository.
func (n *Node) logDangling(h *handle, path git.RepoPath) {
	now := time.Now().UnixNano()
	last := h.dangling.Load()
	if last != 0 && time.Duration(now-last) < danglingInterval || !h.dangling.CompareAndSwap(last, now) {
		return
	}
	n.log.Warn("HEAD of a repository names a branch that does not exist", "repository", path.String())
}
