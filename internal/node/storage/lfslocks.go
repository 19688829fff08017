package storage

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node"
)

// LFSLocks answers a request about file locks of a repository. The caller checks permissions, also that to use
// lfs.LockRequest.Force. Errors: those of locks.Server.Do and of opening the repository. If the error is Exists, the
// answer has the lock that exists. A repository that does not accept pushes only lists its locks.
func (n *Node) LFSLocks(ctx context.Context, path git.RepoPath, _ node.Session, q lfs.LockRequest) (lfs.LockAnswer,
	node.Outcome, error) {
	outcome := node.Outcome{Command: node.CommandLFSLocks}
	switch {
	case n.lfs == nil:
		return lfs.LockAnswer{}, outcome, errNoLFS()
	case q.Action != lfs.ListLocks && n.pushes == nil:
		return lfs.LockAnswer{}, outcome, errNoPushes()
	}
	h, err := n.acquireCurrent(ctx, path)
	if err != nil {
		return lfs.LockAnswer{}, outcome, err
	}
	defer n.release(h)
	if q.Action != lfs.ListLocks {
		if _, err := h.PushPolicy(); err != nil {
			return lfs.LockAnswer{}, outcome, err
		}
	}
	answer, err := n.locks.Do(ctx, h.place.Locks(), q)
	outcome.LFS.Objects = uint32(len(answer.Locks))
	return answer, outcome, err
}
