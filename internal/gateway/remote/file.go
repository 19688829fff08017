package remote

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
)

// File is File of storage.Node, through the node's control API.
func (n *Node) File(ctx context.Context, repo git.RepoPath, commit git.ObjectID, name string,
	limit int64) (file git.File, err error) {
	if s := n.state.Load(); !s.reachable {
		return file, s.err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // of the call
	request := connect.NewRequest(&internalv1.FileRequest{Repository: repo.String(), Commit: commit.String(),
		Path: []byte(name), Limit: limit})
	n.addHeaders(ctx, request.Header())
	stream, err := n.link.Load().node.File(ctx, request)
	if err != nil {
		return file, n.failed(ctx, err)
	}
	defer stream.Close()
	for first := true; stream.Receive(); first = false {
		message := stream.Msg()
		if first {
			file.Size, file.Mode = message.GetSize(), message.GetMode()
		}
		if file.Data = append(file.Data, message.GetData()...); int64(len(file.Data)) > min(limit, file.Size) {
			return git.File{}, n.invalidResponse(errors.New("more bytes than the size of the file or the limit"))
		}
	}
	if err := stream.Err(); err != nil {
		return git.File{}, n.failed(ctx, err)
	}
	if file.Size <= limit && int64(len(file.Data)) != file.Size {
		return git.File{}, n.invalidResponse(errors.New("fewer bytes than the size of the file"))
	}
	return file, nil
}
