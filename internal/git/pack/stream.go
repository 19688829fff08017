package pack

import (
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// ErrDelta says that an object cannot be streamed, as each copy of it is a delta against another object. Read makes it whole.
var ErrDelta = errors.New("the object is stored as a delta")

// Stream is an object that is inflated as it is read, in bounded memory whatever its size. For one goroutine; whoever opened it
// closes it. It holds a descriptor until then, so a repack meanwhile does no harm.
//
// The object is hashed on its way. Who reads it to its end, having skipped what it likes, gets its last bytes only if all were the
// object's. What was read before the end is not verified, and unlike Read a stream cannot go on with another copy.
type Stream struct {
	Type git.ObjectType
	Size int64

	store *Store
	id    git.ObjectID
	sc    *scratch      // nil when closed, and where there is nothing to read
	zlib  io.ReadCloser // from the store's pool
	loc   location
	file  *os.File // of a loose object
	left  int64
	err   error // of the last Read: all that follow get it too
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
	return r.start()
}

// openLoose opens the first loose copy whose header can be read.
func (r *Stream) openLoose(snap *snapshot) error {
	result := errAbsent
	for _, d := range snap.dirs {
		f, err := disk.Open(loosePath(d.path, &r.id))
		if isAbsent(err) {
			continue
		}
		if err == nil {
			if err = r.openLooseFile(f); err == nil {
				return nil
			}
			f.Close()
		}
		if transient(err) {
			return err
		}
		if result == errAbsent {
			result = fault.Wrap(fault.Corrupt, "an object is damaged", fmt.Errorf("loose object %s in %s: %w", r.id, d.path, err))
		}
	}
	return result
}

func (r *Stream) openLooseFile(f *os.File) error {
	var used int
	err := readOpenLoose(f, r.sc, func() (err error) {
		r.Type, r.Size, used, err = r.sc.looseHead()
		return err
	})
	if err != nil {
		return err
	}
	r.sc.in.reset(f, 0, r.sc.in.end)
	if err := r.start(); err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, r.zlib, int64(used)); err != nil {
		return err
	}
	r.file = f
	return nil
}

// start begins to inflate at r.sc.in, and to hash.
func (r *Stream) start() error {
	if r.zlib == nil {
		r.zlib, _ = r.store.inflaters.Get().(io.ReadCloser)
	}
	var err error
	if r.zlib == nil {
		r.zlib, err = zlib.NewReader(&r.sc.in)
	} else {
		err = r.zlib.(zlib.Resetter).Reset(&r.sc.in, nil)
	}
	if err != nil {
		return damaged(r.loc, err)
	}
	header := append(r.sc.small[:0], r.Type.String()...)
	header = append(header, ' ')
	header = strconv.AppendInt(header, r.Size, 10)
	r.sc.hash.Reset()
	r.sc.hash.Write(append(header, 0))
	return nil
}

// Read gives the next bytes; io.EOF after the last.
func (r *Stream) Read(p []byte) (int, error) {
	if r.err == nil && r.left == 0 {
		r.err = r.finish()
	}
	if r.err != nil || len(p) == 0 {
		return 0, r.err
	}
	n, err := r.zlib.Read(p[:min(int64(len(p)), r.left)])
	r.sc.hash.Write(p[:n])
	if r.left -= int64(n); r.left == 0 {
		if r.err = r.finish(); r.err != io.EOF {
			return 0, r.err
		}
		return n, nil
	}
	if err == io.EOF {
		err = errors.New("the zlib stream is shorter than its object")
	}
	if err != nil {
		r.err = r.failed(err)
		return 0, r.err
	}
	return n, nil
}

// finish looks at what comes after the last byte: the end of the zlib stream, and the hash. The error is io.EOF if all is well.
func (r *Stream) finish() error {
	if r.sc == nil {
		return io.EOF
	}
	var one [1]byte
	n, err := 0, error(nil)
	for n == 0 && err == nil {
		n, err = r.zlib.Read(one[:])
	}
	switch {
	case n > 0:
		err = errFull
	case err != io.EOF:
	case r.file != nil && r.sc.in.left() > 0:
		err = errors.New("garbage after the object")
	case string(r.sc.hash.Sum(r.sc.small[:0])) != string(r.id.Raw()):
		err = errHash
	default:
		return io.EOF
	}
	return r.failed(err)
}

func (r *Stream) failed(err error) error { return r.store.readError(r.id, damaged(r.loc, err)) }

// Close lets go of the file. A second one does nothing.
func (r *Stream) Close() error {
	if r.sc == nil {
		return nil
	}
	r.store.releaseAll(r.sc)
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
	if r.zlib != nil {
		r.store.inflaters.Put(r.zlib)
		r.zlib = nil
	}
	r.sc.giveBack()
	r.sc = nil
	if r.err == nil {
		r.err = os.ErrClosed
	}
	return nil
}
