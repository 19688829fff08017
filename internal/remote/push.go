package remote

import (
	"context"
	"io"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
)

// ReceivePack takes a push. The request is not read before the node has let the push in: until then another node may be
// asked. It goes through user space here: what is read of it comes out of net/http's body or an SSH channel, of which
// the kernel knows nothing.
func (n *Node) ReceivePack(ctx context.Context, repo git.RepoPath, session node.Session, pusher node.Pusher,
	request io.Reader, reply node.ResponseWriter) (
	o node.Outcome, err error) {
	defer func() { n.Metrics.called(n.Name, err) }()
	session.Service = protocol.ReceivePack
	up := newUpload(request, session, func(d *internalv1.RequestData) any {
		return &internalv1.ReceivePackRequest{Part: &internalv1.ReceivePackRequest_Data{Data: d}}
	})
	up.push = true
	return n.transfer(ctx, reply, up, func(ctx context.Context, l *link) (connect.StreamingClientConn, roadMessage,
		error) {
		stream, err := l.transfers.ReceivePack(ctx).Conn()
		if err != nil {
			return nil, nil, err
		}
		n.introduce(ctx, stream.RequestHeader())
		err = stream.Send(&internalv1.ReceivePackRequest{Part: &internalv1.ReceivePackRequest_Start{Start: &internalv1.ReceivePackStart{
			Repository: repo.String(), Session: sessionMessage(session),
			Pusher:  &internalv1.Pusher{Name: pusher.Name, Address: pusher.Address},
			Updates: true,
		}}})
		return stream, func(r *internalv1.DataPath) any {
			return &internalv1.ReceivePackRequest{Part: &internalv1.ReceivePackRequest_DataPath{DataPath: r}}
		}, err
	})
}
