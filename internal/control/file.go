package control

import (
	"context"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lookup"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

const maxFile = 16 << 20 // bytes of a file that is given as a whole

// File gives a file of a commit that a visible ref reaches.
func (o objects) File(ctx context.Context, request *connect.Request[packhorsev1.FileRequest], stream *connect.ServerStream[packhorsev1.FileResponse]) error {
	repository, err := parsePath(request.Msg.GetRepository())
	if err != nil {
		return err
	}
	commit, err := commitID(request.Msg.GetCommit())
	if err != nil {
		return err
	}
	limit := request.Msg.GetLimit()
	if limit < 0 || limit > maxFile {
		return fault.New(fault.Invalid, "the limit is from 0 to %d bytes", maxFile)
	}
	place, err := o.enterHeavy(ctx, request.Header().Get(callerHeader))
	if err != nil {
		return err
	}
	defer place.end()
	file, err := o.Node.File(ctx, repository, commit, string(request.Msg.GetPath()), limit)
	if err != nil {
		return err
	}
	answer := &packhorsev1.FileResponse{Size: file.Size, Mode: file.Mode}
	for {
		n := min(len(file.Data), lookup.Piece)
		answer.Data, file.Data = file.Data[:n], file.Data[n:]
		if err := place.send(ctx, func() error { return stream.Send(answer) }); err != nil || len(file.Data) == 0 {
			return err
		}
		answer = new(packhorsev1.FileResponse)
	}
}
