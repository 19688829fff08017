package pack

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// SmallBlobs selects blobs by their size, to read all of them, reachable or not.
type SmallBlobs struct {
	Least, Most int64 // sizes in bytes
	// Read is called with each blob. data is valid during the call. An error ends the read and is returned.
	Read func(id git.ObjectID, data []byte) error
}

// InPack reads the blobs of a pack in the order of their offsets. It reads the header of each entry, but inflates only
// small blobs and small deltas. The errors are those of r.Read, of b.Read and of ctx.
func (b *SmallBlobs) InPack(ctx context.Context, r *Reader, p *Raw) error {
	order, err := p.Order()
	if err != nil {
		return err
	}
	kinds := make([]byte, len(order)) // of the objects by rank; 0: not known
	for rank, pos := range order {
		if rank%1000 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		at := entry{pack: p, pos: int(pos)}
		if at.offset, err = p.Offset(at.pos); err != nil {
			return err
		}
		e, err := r.readHeader(&at)
		if err != nil {
			return at.damaged(err)
		}
		switch e.Kind {
		case OfsDelta:
			base, ok := p.Rank(order, at.offset-e.Distance)
			if !ok {
				return at.damaged(errors.New("no entry begins at the base of the delta"))
			}
			kinds[rank] = kinds[base]
		case RefDelta: // Read finds the base
		default:
			kinds[rank] = e.Kind
		}
		if kinds[rank] != 0 && kinds[rank] != byte(git.Blob) {
			continue
		}
		size, err := b.sizeOf(r, &at, &e)
		if err != nil {
			return at.damaged(err)
		}
		if size < b.Least || size > b.Most {
			continue
		}
		o, err := r.Read(p, at.pos)
		if err != nil {
			return err
		}
		if o.Type == git.Blob {
			if err := b.Read(git.RawObjectID(p.ID(at.pos)), o.Data); err != nil {
				return err
			}
		}
	}
	return nil
}

// sizeOf returns the size of the object of an entry. Of a delta that is too long for a small object it returns the size
// of the delta.
func (b *SmallBlobs) sizeOf(r *Reader, at *entry, e *EntryHeader) (int64, error) {
	const head, instruction = 20, 8 // maximum lengths: of both sizes, and of an instruction, which makes a byte or more
	if !e.IsDelta() || e.Size > head+instruction*b.Most {
		return e.Size, nil
	}
	if int64(cap(r.delta)) < e.Size {
		r.delta = make([]byte, head+instruction*b.Most)
	}
	delta := r.delta[:e.Size]
	if err := r.inflate(at, delta); err != nil {
		return 0, err
	}
	_, size, _, err := deltaSizes(delta)
	return size, err
}

// Loose reads the loose blobs of the store and its alternates. To miss no object that is packed meanwhile, read the
// packs later. The error is Corrupt if an object is damaged.
func (b *SmallBlobs) Loose(ctx context.Context, s *Store) error {
	sc := takeScratch(s.format)
	defer sc.release()
	for _, d := range s.snap.Load().dirs {
		for first := range 256 {
			if err := ctx.Err(); err != nil {
				return err
			}
			for id, err := range looseIn(d.path, byte(first), s.format) {
				if err != nil {
					return fault.Wrap(fault.Unavailable, "cannot list the loose objects", err)
				}
				if err := b.loose(s, sc, d.path, id); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// loose reads a loose object if it is a small blob.
func (b *SmallBlobs) loose(s *Store, sc *scratch, dir string, id git.ObjectID) error {
	f, err := disk.Open(loosePath(dir, &id))
	if isAbsent(err) {
		return nil
	}
	if err != nil {
		return fault.Wrap(fault.Unavailable, "cannot read a loose object", err)
	}
	defer f.Close()
	var data []byte
	err = sc.seekStart(f)
	if err == nil {
		typ, size, head, failed := sc.looseHead()
		if failed == nil && (typ != git.Blob || size < b.Least || size > b.Most) {
			return nil
		}
		if err = failed; err == nil {
			data, err = sc.looseBody(head, size)
		}
	}
	if err == nil && !sc.verify(&id, git.Blob, data) {
		err = errHash
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fault.Wrap(fault.Corrupt, "a loose object is damaged", fmt.Errorf("%s in %s: %w", id, dir, err))
	}
	return b.Read(id, data)
}
