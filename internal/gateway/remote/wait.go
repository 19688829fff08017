package remote

import (
	"context"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
)

// Wait is Wait of storage.Node, through the node's control API.
func (n *Node) Wait(ctx context.Context, repo git.RepoPath, what node.WaitCondition) (seen git.Version, err error) {
	if s := n.state.Load(); !s.reachable {
		return seen, s.err
	}
	request := connect.NewRequest(&internalv1.WaitRequest{Repository: repo.String(), Generation: what.Generation,
		Epoch: what.Epoch, Caller: what.Caller})
	if !what.ID.IsZero() {
		request.Msg.Oid = what.ID.String()
	}
	n.addHeaders(ctx, request.Header())
	response, err := n.link.Load().node.Wait(ctx, request)
	if err != nil {
		return seen, n.failed(ctx, err)
	}
	return versionOf(response.Msg.GetVersion()), nil
}
