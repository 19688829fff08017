package lookup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// BlobRequest requests the bytes of a blob.
type BlobRequest struct {
	ID     git.ObjectID // zero: use In
	In     PathIn
	Offset int64 // of the first byte
	Length int64 // maximum number of bytes; 0: to the end
}

// BlobHeader describes a blob.
type BlobHeader struct {
	ID   git.ObjectID
	Size int64  // of the whole blob
	Mode uint32 // of the tree's entry, if the request has a path
}

// Piece is the maximum number of bytes in one call of Blob's data function.
const Piece = 128 << 10

// maxDelta is the maximum size in bytes of a blob that is stored as a delta, because it is rebuilt in memory.
const maxDelta = 128 << 20

var pieces = sync.Pool{New: func() any { return new([Piece]byte) }}

// Blob calls head once, then data with the bytes in order, in pieces of at most Piece bytes. A slice is valid only
// during its call.
//
// A blob of up to 1 MiB is verified before its first byte is sent, and so is one that is stored as a delta, up to 128
// MiB. A larger blob is inflated as it is sent, in bounded memory. Its last bytes are sent only if all bytes were
// correct. The bytes before them, and ranges that end before the blob does, are not verified.
func (l *Reader) Blob(ctx context.Context, r *repo.Repo, q BlobRequest, head func(BlobHeader) error,
	data func([]byte) error) error {
	c, err := l.begin(ctx, r)
	if err != nil {
		return err
	}
	defer c.end()
	h, err := c.blob(q)
	if err != nil {
		return err
	}
	if q.Offset < 0 || q.Length < 0 || q.Offset > h.Size {
		return fault.New(fault.Invalid, "the range %d+%d is outside the blob, which has %d bytes", q.Offset, q.Length,
			h.Size)
	}
	length := h.Size - q.Offset
	if q.Length > 0 {
		length = min(length, q.Length)
	}
	if h.Size > l.bounds.whole {
		stream, err := r.Objects.Stream(h.ID)
		if err == nil {
			defer stream.Close()
			if err := head(h); err != nil {
				return err
			}
			return c.stream(stream, q.Offset, length, data)
		}
		if !errors.Is(err, pack.ErrDelta) {
			return err
		}
		if h.Size > maxDelta {
			return fault.New(fault.Invalid,
				"blob %s has %d bytes and is stored as a delta, which is not read beyond %d; "+
					"a repack with a smaller core.bigFileThreshold stores it whole", h.ID, h.Size, int64(maxDelta))
		}
	}
	whole, err := c.read(h.ID, git.Blob, maxDelta)
	if err != nil {
		return err
	}
	if err := head(h); err != nil {
		return err
	}
	for whole = whole[q.Offset : q.Offset+length]; len(whole) > 0; {
		n := min(len(whole), l.bounds.piece)
		if err := data(whole[:n]); err != nil {
			return err
		}
		whole = whole[n:]
	}
	return nil
}

// blob returns the requested blob.
func (c *operation) blob(q BlobRequest) (BlobHeader, error) {
	h, what := BlobHeader{ID: q.ID}, "object "+q.ID.String()
	if q.ID.IsZero() {
		e, err := c.find(q.In)
		if err != nil {
			return h, err
		}
		h.ID, h.Mode, what = e.id, e.mode, fmt.Sprintf("path %q", fault.Short(q.In.Path))
		switch e.mode {
		case pack.ModeTree:
			return h, fault.New(fault.Invalid, "%s is a directory, not a file", what)
		case pack.ModeGitlink:
			return h, fault.New(fault.Invalid, "%s is a submodule, not a file", what)
		}
	} else if q.ID.Format() != c.repo.Format {
		return h, fault.New(fault.Invalid, "%s is not of the repository's format, %s", what, c.repo.Format)
	}
	typ, size, err := c.repo.Objects.Header(h.ID)
	switch {
	case fault.Is(err, fault.NotFound) && q.ID.IsZero():
		return h, fault.Wrap(fault.Corrupt, "the repository is incomplete: blob "+h.ID.String()+" is missing", err)
	case err != nil:
		return h, err
	case typ != git.Blob && q.ID.IsZero():
		return h, fault.New(fault.Corrupt, "object %s is a %s where a blob should be", h.ID, typ)
	case typ != git.Blob:
		return h, fault.New(fault.Invalid, "%s is a %s, not a blob", what, typ)
	}
	h.Size = size
	return h, nil
}

// stream sends a part of a blob while it is inflated.
func (c *operation) stream(from io.Reader, offset, length int64, data func([]byte) error) error {
	buf := pieces.Get().(*[Piece]byte)
	defer pieces.Put(buf)
	next := func(n int64) ([]byte, error) {
		if err := c.ctx.Err(); err != nil {
			return nil, err
		}
		b := buf[:min(n, int64(c.bounds.piece))]
		_, err := io.ReadFull(from, b)
		return b, err
	}
	for offset > 0 {
		b, err := next(offset)
		if err != nil {
			return err
		}
		offset -= int64(len(b))
	}
	for length > 0 {
		b, err := next(length)
		if err != nil {
			return err
		}
		if err := data(b); err != nil {
			return err
		}
		length -= int64(len(b))
	}
	return nil
}
