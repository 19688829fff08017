package client

import (
	"context"
	"errors"
	"io"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// maxPart is the maximum length of a part of a file in bytes.
const maxPart = 256 << 10

// CommitWriter sends the changes of one commit, whose size is limited only by that of a push. Nothing changes before
// Commit. After an error no commit can be made. Not safe for concurrent use.
type CommitWriter struct {
	stream *connect.ClientStreamForClient[packhorsev1.CreateStreamRequest, packhorsev1.CreateStreamResponse]
	cancel context.CancelFunc
}

// OpenCommit begins a commit. The changes of the request are its first ones. The context must not end before Commit.
// The caller closes the CommitWriter.
func (c *Client) OpenCommit(ctx context.Context,
	request *packhorsev1.CommitServiceCreateRequest) (*CommitWriter, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &CommitWriter{stream: c.commits.CreateStream(ctx), cancel: cancel}
	if err := w.send(&packhorsev1.CreateStreamRequest{Start: request}); err != nil {
		cancel()
		return nil, err
	}
	return w, nil
}

func (w *CommitWriter) send(part *packhorsev1.CreateStreamRequest) error {
	err := w.stream.Send(part)
	if errors.Is(err, io.EOF) { // the node ended the call, and the response has the reason
		if _, err = w.Commit(); err == nil {
			err = connect.NewError(connect.CodeInternal, errors.New("the node ended the call before the commit"))
		}
	}
	return err
}

// Add adds changes, in one message. Files of more than a megabyte are for AddFile.
func (w *CommitWriter) Add(changes ...*packhorsev1.FileChange) error {
	return w.send(&packhorsev1.CreateStreamRequest{Changes: changes})
}

// AddFile adds a file with the content that r returns. The file has a path, and no content.
func (w *CommitWriter) AddFile(file *packhorsev1.PutFile, r io.Reader) error {
	part := &packhorsev1.CreateStreamRequest{Changes: make([]*packhorsev1.FileChange, 1)}
	for buffer, first := make([]byte, maxPart), true; ; first = false {
		n, err := io.ReadFull(r, buffer)
		ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !ended {
			return err
		}
		if first {
			file = proto.CloneOf(file)
			file.Source, file.Continued = &packhorsev1.PutFile_Content{Content: buffer[:n]}, !ended
			part.Changes[0] = &packhorsev1.FileChange{Change: &packhorsev1.FileChange_Put{Put: file}}
		} else {
			part = &packhorsev1.CreateStreamRequest{Content: buffer[:n], Continued: !ended}
		}
		if err := w.send(part); err != nil || ended {
			return err
		}
	}
}

// Commit makes the commit. After a lost response, repeat the commit with the same idempotency key.
func (w *CommitWriter) Commit() (*packhorsev1.CommitServiceCreateResponse, error) {
	defer w.cancel()
	response, err := w.stream.CloseAndReceive()
	if err != nil {
		return nil, err
	}
	return response.Msg.GetCreated(), nil
}

// Close ends the call. Before Commit it discards the changes. It may be called repeatedly.
func (w *CommitWriter) Close() error {
	w.cancel()
	return nil
}
