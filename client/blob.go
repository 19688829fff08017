package client

import (
	"context"
	"errors"
	"io"

	"connectrpc.com/connect"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Blob is the content of a file, or a part of it, as it arrives. One goroutine reads it.
type Blob struct {
	OID  string
	Size int64  // bytes of the whole blob, whatever part was asked for
	Mode uint32 // of the tree's entry, if the request named a path

	stream *connect.ServerStreamForClient[packhorsev1.BlobResponse]
	cancel context.CancelFunc
	rest   []byte
	err    error // given once rest is read
}

// OpenBlob begins to read a blob. The context must live as long as it is read. The caller closes it.
func (c *Client) OpenBlob(ctx context.Context, request *packhorsev1.BlobRequest) (*Blob, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := c.objects.Blob(ctx, connect.NewRequest(request))
	if err != nil {
		cancel()
		return nil, err
	}
	b := &Blob{stream: stream, cancel: cancel}
	if !b.next() {
		defer b.Close()
		if b.err == io.EOF {
			return nil, connect.NewError(connect.CodeInternal, errors.New("the node sent no blob"))
		}
		return nil, b.err
	}
	header := stream.Msg().GetHeader()
	b.OID, b.Size, b.Mode = header.GetOid(), header.GetSize(), header.GetMode()
	return b, nil
}

// next takes one message from the stream. It reports false at the end, with b.err set.
func (b *Blob) next() bool {
	if b.err != nil {
		return false
	}
	if b.stream.Receive() {
		b.rest = b.stream.Msg().GetData()
		return true
	}
	if b.err = b.stream.Err(); b.err == nil {
		b.err = io.EOF
	}
	return false
}

// Read reads the blob's bytes. io.EOF comes only after all that were asked for; a stream that breaks is another error.
func (b *Blob) Read(p []byte) (int, error) {
	for len(b.rest) == 0 {
		if len(p) == 0 {
			return 0, nil
		}
		if !b.next() {
			return 0, b.err
		}
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// WriteTo writes what is left of the blob to w, without a buffer of its own.
func (b *Blob) WriteTo(w io.Writer) (int64, error) {
	var sum int64
	for {
		if len(b.rest) > 0 {
			n, err := w.Write(b.rest)
			sum, b.rest = sum+int64(n), b.rest[n:]
			if err != nil {
				return sum, err
			}
		}
		if !b.next() {
			if b.err == io.EOF {
				return sum, nil
			}
			return sum, b.err
		}
	}
}

// Close ends the call. It may be called before all is read, and more than once.
func (b *Blob) Close() error {
	b.cancel()
	_ = b.stream.Close() // what ends a call that is not wanted any more is no news
	if b.err == nil {
		b.rest, b.err = nil, errors.New("packhorse: the blob is closed")
	}
	return nil
}
