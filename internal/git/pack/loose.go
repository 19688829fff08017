package pack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"syscall"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"golang.org/x/sys/unix"
)

// errAbsent means that an object does not exist at a location.
var errAbsent = errors.New("no such object")

var errGarbage = errors.New("garbage after the object")

// looseHeader is the maximum length of a loose object's header, which is more than that of a valid one.
const looseHeader = 32

// loosePath returns the path of a loose object in an object directory (gitrepository-layout,
// "objects/[0-9a-f][0-9a-f]").
func loosePath(dir string, id *git.ObjectID) string {
	path := make([]byte, 0, len(dir)+3+2*len(id.Raw()))
	path = append(append(path, dir...), '/')
	hex := id.AppendHex(path)
	path = append(hex, 0)
	copy(path[len(dir)+4:], path[len(dir)+3:len(hex)])
	path[len(dir)+3] = '/'
	return string(path)
}

// hasLoose looks for a loose object in all directories.
func (s *Store) hasLoose(snap *snapshot, id *git.ObjectID) (bool, error) {
	for _, d := range snap.dirs {
		found, err := s.stat(loosePath(d.path, id))
		if err != nil {
			return false, fault.Wrap(fault.Internal, "looking for an object", err)
		}
		if found != (disk.ID{}) {
			return true, nil
		}
	}
	return false, nil
}

// looseIn yields the loose objects of an object directory whose IDs begin with a byte, in no order. An error is the
// last element.
func looseIn(dir string, first byte, format git.ObjectFormat) iter.Seq2[git.ObjectID, error] {
	return func(yield func(git.ObjectID, error) bool) {
		digits := fmt.Sprintf("%02x", first)
		f, err := os.OpenFile(dir+"/"+digits, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if isAbsent(err) {
			return
		}
		defer f.Close()
		for err == nil {
			var names []string
			names, err = f.Readdirnames(1000)
			for _, name := range names {
				if len(name) != format.HexSize()-2 {
					continue // a temporary file
				}
				if id, bad := git.ParseObjectID(digits + name); bad == nil && !yield(id, nil) {
					return
				}
			}
		}
		if err != io.EOF && !isAbsent(err) {
			yield(git.ObjectID{}, err)
		}
	}
}

// readLoose reads a loose object from the first directory with an undamaged copy. The error is errAbsent if there is no
// copy.
func (s *Store) readLoose(snap *snapshot, sc *scratch, id *git.ObjectID, limit int64) (typ git.ObjectType, data []byte,
	err error) {
	f, err := s.openLoose(snap, sc, id, func() error {
		var size int64
		var head []byte
		if typ, size, head, err = sc.looseHead(); err != nil {
			return err
		}
		if size > limit {
			return errTooLarge(size, limit)
		}
		data, err = sc.looseBody(head, size)
		return err
	})
	f.Close()
	return typ, data, err
}

// describeLoose reads a loose object's header.
func (s *Store) describeLoose(snap *snapshot, sc *scratch, id *git.ObjectID) (typ git.ObjectType, size int64,
	err error) {
	f, err := s.openLoose(snap, sc, id, func() error {
		typ, size, _, err = sc.looseHead()
		return err
	})
	f.Close()
	return typ, size, err
}

// openLoose calls read with sc.in at each loose copy of an object, until one is read without an error. It returns the
// file of that one, which is nil after an error.
func (s *Store) openLoose(snap *snapshot, sc *scratch, id *git.ObjectID, read func() error) (*os.File, error) {
	result := errAbsent
	for _, d := range snap.dirs {
		f, err := disk.Open(loosePath(d.path, id))
		if isAbsent(err) {
			continue
		}
		if err == nil {
			if err = sc.seekStart(f); err == nil {
				err = read()
			}
			if err == nil {
				return f, nil
			}
			f.Close()
		}
		if transient(err) {
			return nil, err
		}
		if !fault.Is(err, fault.Invalid) {
			err = fault.Wrap(fault.Corrupt, "an object is damaged", fmt.Errorf("loose object %s in %s: %w", *id,
				d.path, err))
		}
		if result == errAbsent {
			result = err
		}
	}
	return nil, result
}

// seekStart makes sc.in read a whole file.
func (sc *scratch) seekStart(f *os.File) error {
	info, err := f.Stat()
	if err == nil {
		sc.seek(f, 0, info.Size())
	}
	return err
}

// isAbsent reports whether a path or one of its directories does not exist, by the error of a system call.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// transient reports whether err is due to a shortage of file descriptors or memory, and not to the file.
func transient(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// looseHead starts the zlib stream at sc.in and reads the header "type size\0". The content that it read with it, head,
// is valid until sc is used next.
func (sc *scratch) looseHead() (typ git.ObjectType, size int64, head []byte, err error) {
	head = sc.small[:looseHeader]
	n, err := sc.peek(head)
	if err != nil {
		return 0, 0, nil, err
	}
	typ, size, used, err := parseLooseHeader(head[:n])
	if err == nil && size/inflateRatio > sc.section.end {
		err = errEntrySize
	}
	return typ, size, head[min(used, n):n], err
}

// looseBody reads the content after looseHead.
func (sc *scratch) looseBody(head []byte, size int64) ([]byte, error) {
	if int64(len(head)) > size {
		return nil, errLong
	}
	data := make([]byte, size)
	if err := sc.inflateRest(data[copy(data, head):]); err != nil {
		return nil, err
	}
	if sc.remaining() > 0 {
		return nil, errGarbage
	}
	return data, nil
}

// parseLooseHeader reads "type size\0" as strictly as git: one space, decimal digits, no leading zero.
func parseLooseHeader(b []byte) (typ git.ObjectType, size int64, used int, err error) {
	end := bytes.IndexByte(b, 0)
	if end < 0 {
		return 0, 0, 0, errors.New("the object's header is too long or has no end")
	}
	name, digits, ok := bytes.Cut(b[:end], []byte{' '})
	if !ok || len(digits) == 0 || len(digits) > 1 && digits[0] == '0' {
		return 0, 0, 0, errors.New("the object's header has no size")
	}
	if typ, err = git.ParseObjectType(string(name)); err != nil {
		return 0, 0, 0, err
	}
	for _, d := range digits {
		if d < '0' || d > '9' {
			return 0, 0, 0, errors.New("the object's header has a bad size")
		}
		if size > 1<<59 {
			return 0, 0, 0, errSize
		}
		size = 10*size + int64(d-'0')
	}
	return typ, size, end + 1, nil
}
