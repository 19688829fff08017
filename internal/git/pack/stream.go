package pack

import (
	"bytes"
	"errors"
	"io"
	"os"

	"github.com/packhorse-git/packhorse/internal/git"
)

// ErrDelta means that an object cannot be streamed, because all its copies are deltas. Use Read.
var ErrDelta = errors.New("the object is stored as a delta")

// Stream inflates an object while it is read, in bounded memory. It is used by one goroutine, and closed by the caller
// that opened it. It keeps a file descriptor open, so a repack does not disturb it.
//
// The object is hashed while it is read, and the last bytes are returned only if the hash matches. The bytes before
// them are not verified, and unlike Read a stream cannot continue with another copy.
type Stream struct {
	Type git.ObjectType
	Size int64

	store *Store
	id    git.ObjectID
	sc    *scratch // nil: closed, or without bytes to read
	loc   location
	file  *os.File // of a loose object
	head  []byte   // of a loose object: content that was read with its header
	left  int64
	err   error // of the last Read; later ones return it too
}

// Stream opens an object. The errors are those of Read, and ErrDelta.
func (s *Store) Stream(id git.ObjectID) (*Stream, error) {
	r := &Stream{store: s, id: id}
	err := s.lookup(&id, func(snap *snapshot, _ *scratch, loc location) error {
		r.sc, r.loc = takeScratch(s.format), loc
		var err error
		if loc.pack == nil {
			err = r.openLoose(snap)
		} else {
			err = r.openPacked(snap)
		}
		if err != nil {
			r.Close()
		}
		return err
	})
	switch {
	case err == nil:
		r.left, r.err = r.Size, nil
		return r, nil
	case err == errAbsent && id == s.emptyTree:
		return &Stream{Type: git.Tree, store: s, id: id}, nil
	case errors.Is(err, ErrDelta):
		return nil, ErrDelta
	}
	return nil, s.readError(id, err)
}

func (r *Stream) openPacked(snap *snapshot) (err error) {
	if r.Type, r.Size, err = r.store.describe(snap, r.sc, r.loc); err != nil {
		return err
	}
	if len(r.sc.chain) > 0 {
		return ErrDelta
	}
	if err := r.sc.startZlib(); err != nil {
		return damaged(r.loc, err)
	}
	r.sc.startHash(r.Type, r.Size)
	return nil
}

// openLoose opens the first loose copy whose header can be read.
func (r *Stream) openLoose(snap *snapshot) (err error) {
	r.file, err = r.store.openLoose(snap, r.sc, &r.id, func() error {
		typ, size, head, err := r.sc.looseHead()
		if err == nil && int64(len(head)) > size {
			err = errLong
		}
		if err != nil {
			return err
		}
		r.Type, r.Size, r.head = typ, size, bytes.Clone(head)
		r.sc.startHash(typ, size)
		return nil
	})
	return err
}

// Read reads the next bytes. The error is io.EOF at the end.
func (r *Stream) Read(p []byte) (int, error) {
	if r.err == nil && r.left == 0 {
		r.err = r.finish()
	}
	if r.err != nil || len(p) == 0 {
		return 0, r.err
	}
	n, err := copy(p, r.head), error(nil)
	if r.head = r.head[n:]; n == 0 {
		n, err = r.sc.zlib.Read(p[:min(int64(len(p)), r.left)])
	}
	r.sc.hash.Write(p[:n])
	if r.left -= int64(n); r.left == 0 {
		if r.err = r.finish(); r.err != io.EOF {
			return 0, r.err
		}
		return n, nil
	}
	if err == io.EOF {
		err = errShort
	}
	if err != nil {
		r.err = r.failed(err)
		return 0, r.err
	}
	return n, nil
}

// finish checks the end of the zlib stream, and the hash. The error is io.EOF if both are correct.
func (r *Stream) finish() error {
	if r.sc == nil {
		return io.EOF
	}
	err := r.sc.endZlib()
	switch {
	case err != nil:
	case r.file != nil && r.sc.remaining() > 0:
		err = errGarbage
	case string(r.sc.hash.Sum(r.sc.small[:0])) != string(r.id.Raw()):
		err = errHash
	default:
		return io.EOF
	}
	return r.failed(err)
}

func (r *Stream) failed(err error) error { return r.store.readError(r.id, damaged(r.loc, err)) }

// Close closes the file. Further calls have no effect.
func (r *Stream) Close() error {
	if r.sc == nil {
		return nil
	}
	r.store.releaseAll(r.sc)
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
	r.sc.release()
	r.sc = nil
	if r.err == nil {
		r.err = os.ErrClosed
	}
	return nil
}
