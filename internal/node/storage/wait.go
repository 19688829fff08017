package storage

import (
	"context"
	"errors"
	"runtime"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/watch"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// newWalks creates the slots for walks through history. Each walk uses a CPU, and a push starts one for each caller of
// Wait. The queue has room for all callers.
func newWalks(callers int) *balance.Slots {
	return balance.NewSlots((runtime.NumCPU()+1)/2, balance.Limits{Queue: callers}, balance.Clock{})
}

// errVisible ends a watch when the condition holds.
var errVisible = errors.New("visible")

// Wait returns when every request sees the given state of the repository, with the version that has it. The error is
// NotFound if the repository does not exist or is removed, and Deadline or Cancelled when ctx ends. It is Invalid for
// an object ID of another format, Exhausted if too many callers wait, and Unavailable when the node closes.
func (n *Node) Wait(ctx context.Context, path git.RepoPath, condition node.WaitCondition) (version git.Version,
	err error) {
	check := func() error {
		h, _, current, err := n.snapshot(ctx, path)
		if err != nil {
			return err
		}
		defer n.release(h)
		version = current
		if condition.Generation > 0 && !hasReached(version, condition) {
			return nil
		}
		if !condition.ID.IsZero() {
			ok, err := n.server.Visible(ctx, h.Repo, n.walk(ctx, condition.Caller), condition.ID)
			if err != nil || !ok {
				return err
			}
		}
		return errVisible
	}
	if err := check(); err != nil { // mostly the state is visible, and no watch is needed
		return version, waitError(err)
	}
	err = n.Watch(ctx, []watch.From{{Path: path}}, func(watch.Event) error { return check() })
	return version, waitError(err)
}

// waitError returns nil if the condition holds.
func waitError(err error) error {
	if err == errVisible {
		return nil
	}
	if fault.Is(err, fault.Deadline) {
		return fault.Wrap(fault.Deadline, "the state is not visible yet", err)
	}
	return err
}

// hasReached reports whether the refs are at least as new as the condition's version.
func hasReached(now git.Version, condition node.WaitCondition) bool {
	if condition.Epoch != 0 && condition.Epoch != now.Epoch {
		return condition.Epoch < now.Epoch // everything that an earlier process has reported is on disk
	}
	return now.Generation >= condition.Generation
}
