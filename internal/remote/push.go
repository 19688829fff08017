package remote

import (
	"context"
	"io"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// ReceivePack takes a push.
func (n *Node) ReceivePack(context.Context, git.RepoPath, protocol.Session, protocol.Pusher, io.Reader, protocol.Reply) (protocol.Outcome, error) {
	return protocol.Outcome{}, fault.New(fault.Denied, "this server does not accept pushes")
}
