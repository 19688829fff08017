package client

import (
	"context"
	"errors"
	"io"

	"connectrpc.com/connect"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Blob streams the content of a blob or a range of it. Not safe for concurrent use.
type Blob struct {
	OID  string
	Size int64  // bytes of the whole blob
	Mode uint32 // mode of the tree entry, if the request has a path

	stream *connect.ServerStreamForClient[packhorsev1.BlobResponse]
	cancel context.CancelFunc
	rest   []byte
	err    error // returned after rest
}

// OpenBlob begins to read a blob. The context must not end before the last read. The caller closes the Blob.
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

// next reads one message from the stream. At the end it sets b.err and returns false.
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

// Read reads bytes of the blob. It returns io.EOF only after all requested bytes, and another error for a broken
// stream.
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

// WriteTo writes the remaining bytes to w, without a buffer.
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

// Close ends the call. It may be called before the end of the blob, and repeatedly.
func (b *Blob) Close() error {
	b.cancel()
	_ = b.stream.Close() // the call was cancelled
	if b.err == nil {
		b.rest, b.err = nil, errors.New("packhorse: the blob is closed")
	}
	return nil
}
