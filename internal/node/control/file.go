package control

import (
	"context"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
)

// maxFile is the maximum size of a file that File returns, in bytes.
const maxFile = 16 << 20

// nodeService serves the look-ups of gateways and search processes.
type nodeService struct{ *Server }

var _ internalv1connect.NodeServiceHandler = nodeService{}

// File sends a file of a commit that a visible ref reaches.
func (o nodeService) File(ctx context.Context, request *connect.Request[internalv1.FileRequest],
	stream *connect.ServerStream[internalv1.FileResponse]) error {
	commit, err := commitID(request.Msg.GetCommit())
	if err != nil {
		return err
	}
	limit := request.Msg.GetLimit()
	if limit < 0 || limit > maxFile {
		return fault.New(fault.Invalid, "invalid limit: want 0 to %d bytes", maxFile)
	}
	w, err := o.begin(ctx, o.slots, request)
	if err != nil {
		return err
	}
	defer w.end()
	file, err := o.Node.File(ctx, w.repository, commit, string(request.Msg.GetPath()), limit)
	if err != nil {
		return err
	}
	send, answer := sendTo(w, stream), &internalv1.FileResponse{Size: file.Size, Mode: file.Mode}
	for {
		n := min(len(file.Data), lookup.Piece)
		answer.Data, file.Data = file.Data[:n], file.Data[n:]
		if err := send(answer); err != nil || len(file.Data) == 0 {
			return err
		}
		answer = new(internalv1.FileResponse)
	}
}
