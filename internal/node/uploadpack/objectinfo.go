package uploadpack

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
)

// objectInfo answers the object-info command (gitprotocol-v2(5), "object-info"). As with git, a missing or damaged
// object has a line without a size, and a request without objects has an empty response.
func objectInfo(ctx context.Context, r *repo.Repo, req *protocol.ObjectInfo, response node.ResponseWriter) error {
	done, err := r.Hold(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := r.Refresh(); err != nil {
		return err
	}
	pooled := getScratch()
	b := pooled.buf
	defer func() { pooled.buf = b; putScratch(pooled) }()
	if req.Size && len(req.Objects) > 0 {
		b = protocol.AppendInfoHeader(b)
	}
	lookups := r.Objects.Lookups()
	for i, id := range req.Objects {
		if i%lookupsPerCheck == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		size := int64(-1)
		if req.Size {
			var err error
			if size, err = sizeOf(r.Objects, &lookups, id); err != nil {
				return err
			}
		}
		b = protocol.AppendInfo(b, id, req.Size, size)
	}
	b = pktline.AppendFlush(b)
	return sendWhole(b, response)
}

// sizeOf returns the size of an object; -1 if it is missing or damaged. It looks the object up first, because reading
// the header of a missing object checks the directories.
func sizeOf(objects *pack.Store, lookups *pack.Lookups, id git.ObjectID) (int64, error) {
	found, err := lookups.Has(id)
	if found {
		var size int64
		if _, size, err = objects.Header(id); err == nil {
			return size, nil
		}
	}
	if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Corrupt) {
		err = nil
	}
	return -1, err
}

// sendWhole sends a response with its length. A client that reads a long one slowly must not keep a slot of the small
// lane.
func sendWhole(b []byte, response node.ResponseWriter) error {
	if len(b) > bufferSize {
		if err := response.StartBulk(false); err != nil {
			return err
		}
	}
	response.SetLength(int64(len(b)))
	_, err := response.Write(b)
	return err
}
