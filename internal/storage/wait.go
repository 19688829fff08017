package storage

import (
	"context"
	"errors"
	"runtime"

	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// newWalks makes the slots of walks through history for those who wait: each takes a CPU while it lasts, and a push makes all of them look at the
// same time. Of the queue they are as many as may wait.
func newWalks(watchers int) *balance.Slots {
	return balance.NewSlots((runtime.NumCPU()+1)/2, balance.Limits{Queue: watchers}, balance.Clock{})
}

// errSeen ends a watch that has seen what was waited for.
var errSeen = errors.New("seen")

// Wait returns as soon as whoever reads the repository sees what is waited for. Errors: NotFound if there is no such repository, or it goes;
// Deadline or Cancelled when ctx ends; Invalid for an object ID of another format; Exhausted if too many wait; Unavailable when the node closes.
func (n *Node) Wait(ctx context.Context, path git.RepoPath, what node.WaitCondition) (seen git.Version, err error) {
	turn := func() (release func(), err error) {
		release, _, err = n.walks.Acquire(ctx, balance.Caller(what.Caller))
		return release, err
	}
	look := func() error {
		h, _, version, err := n.snapshot(ctx, path)
		if err != nil {
			return err
		}
		defer n.release(h)
		seen = version
		if what.Generation > 0 && !reached(version, what) {
			return nil
		}
		if !what.ID.IsZero() {
			if ok, err := n.server.Visible(ctx, h.Repo, what.ID, turn); err != nil || !ok {
				return err
			}
		}
		return errSeen
	}
	if err := look(); err != nil { // without a watch: mostly it is there
		return seen, over(err)
	}
	err = n.Watch(ctx, []WatchFrom{{Path: path}}, func(Event) error { return look() })
	return seen, over(err)
}

// over is nil for what was waited for.
func over(err error) error {
	if err == errSeen {
		return nil
	}
	if kind := fault.KindOf(err); kind == fault.Deadline {
		return fault.Wrap(fault.Deadline, "it cannot be seen yet", err)
	}
	return err
}

// reached tells whether the refs are as new as a version that somebody was told.
func reached(now git.Version, what node.WaitCondition) bool {
	if what.Epoch != 0 && what.Epoch != now.Epoch {
		return what.Epoch < now.Epoch // what this node was before is on disk
	}
	return now.Generation >= what.Generation
}
