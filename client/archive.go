package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"

	"connectrpc.com/connect"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Archive streams an archive of a revision. Its last read fails with FAULT_KIND_CORRUPT if the bytes do not have the
// announced size and SHA-256. Not safe for concurrent use.
type Archive struct {
	Commit string
	Size   int64  // bytes of the archive
	SHA256 string // of the archive, in hex

	content
}

// OpenArchive begins to read an archive. The context must not end before the last read. The caller closes the Archive.
func (c *Client) OpenArchive(ctx context.Context, request *packhorsev1.ArchiveRequest) (*Archive, error) {
	a := &Archive{}
	first, err := openContent(ctx, &a.content, request, c.archives.Archive, (*packhorsev1.ArchiveResponse).GetData)
	if err != nil {
		return nil, err
	}
	header := first.GetHeader()
	if header == nil {
		return nil, a.fail(connect.CodeInternal, "the node sent no archive")
	}
	a.Commit, a.Size, a.SHA256 = header.GetCommit(), header.GetSize(), header.GetSha256()
	receive, hash, size := a.receive, sha256.New(), int64(len(a.rest))
	hash.Write(a.rest)
	a.receive = func() ([]byte, error) {
		data, err := receive()
		hash.Write(data)
		size += int64(len(data))
		if sum := hex.EncodeToString(hash.Sum(nil)); err == io.EOF && (size != a.Size || sum != a.SHA256) {
			err = a.fail(connect.CodeDataLoss, "archive has %d bytes with SHA-256 %s, want %d bytes with SHA-256 %s", size, sum,
				a.Size, a.SHA256)
		}
		return data, err
	}
	return a, nil
}
