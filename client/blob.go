package client

import (
	"context"

	"connectrpc.com/connect"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Blob streams the content of a blob or a range of it. Not safe for concurrent use.
type Blob struct {
	OID  string
	Size int64  // bytes of the whole blob
	Mode uint32 // mode of the tree entry, if the request has a path

	content
}

// OpenBlob begins to read a blob. The context must not end before the last read. The caller closes the Blob.
func (c *Client) OpenBlob(ctx context.Context, request *packhorsev1.BlobRequest) (*Blob, error) {
	b := &Blob{}
	first, err := openContent(ctx, &b.content, request, c.objects.Blob, (*packhorsev1.BlobResponse).GetData)
	if err != nil {
		return nil, err
	}
	header := first.GetHeader()
	if header == nil {
		return nil, b.fail(connect.CodeInternal, "the node sent no blob")
	}
	b.OID, b.Size, b.Mode = header.GetOid(), header.GetSize(), header.GetMode()
	return b, nil
}
