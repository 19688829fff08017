package remote

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
)

// Store returns the ID of the node's object store, "" if it has none. It reports false if the node has not answered a
// health check yet. It does not contact the node.
func (n *Node) Store() (id string, isKnown bool) {
	s := n.state.Load()
	return s.store, s.reported
}

// Hint announces to the node that another one may have written a record of a repository to their object store. It
// reports whether the node has the packs of an earlier record on its disk.
func (n *Node) Hint(ctx context.Context, repo git.RepoPath, record uint64) (isHeld bool, err error) {
	answer, err := call(ctx, n, n.link.Load().node.Hint,
		&internalv1.HintRequest{Repository: repo.String(), Record: record})
	return answer.GetHeld(), err
}
