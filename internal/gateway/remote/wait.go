package remote

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
)

// Wait is Wait of storage.Node, through the node's control API.
func (n *Node) Wait(ctx context.Context, repo git.RepoPath, what node.WaitCondition) (seen git.Version, err error) {
	request := &internalv1.WaitRequest{Repository: repo.String(), Generation: what.Generation, Epoch: what.Epoch,
		Caller: what.Caller}
	if !what.ID.IsZero() {
		request.Oid = what.ID.String()
	}
	answer, err := call(ctx, n, n.link.Load().node.Wait, request)
	return versionOf(answer.GetVersion()), err
}
