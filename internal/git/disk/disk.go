// Package disk opens and identifies files that others may replace at any time, by anything.
//
// Two things can go wrong with a path that is somebody else's. What stands there may be no file: opening a pipe waits
// for a writer, for ever if need be. And what stands there may be another file than last time, or the same one with
// other bytes. Open deals with the first, ID with the second; all that reads repositories goes through them. Below
// tells whether a path leads to where it may.
package disk

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// errNotRegular is the cause where a path leads to a directory, a pipe, a socket or a device.
var errNotRegular = errors.New("not a regular file")

// Open opens a regular file for reading, at the end of symbolic links if need be. It never waits: if something else
// stands at the path, the error is of kind fault.Corrupt. Other errors are those of os.Open.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EOPNOTSUPP) { // a socket
		return nil, notRegular(path)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = notRegular(path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func notRegular(path string) error {
	return fault.Wrap(fault.Corrupt, "a file of the repository is not a regular file",
		&fs.PathError{Op: "open", Path: path, Err: errNotRegular})
}

// ID tells one state of a file or directory from another without reading it. IDs are compared with ==. The zero ID:
// there is no such file.
type ID struct {
	Dev, Ino     uint64
	Size         int64
	Mtime, Ctime int64 // nanoseconds since 1970
}

// Of is the ID in what stat tells.
func Of(st *unix.Stat_t) ID {
	return ID{Dev: uint64(st.Dev), Ino: st.Ino, Size: st.Size, Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano()}
}

// OfFile is the ID of an open file.
func OfFile(f *os.File) (ID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return ID{}, &fs.PathError{Op: "fstat", Path: f.Name(), Err: err}
	}
	return Of(&st), nil
}

// Stat follows symbolic links. A path at which nothing is is no error but the zero ID.
func Stat(path string) (ID, error) {
	var st unix.Stat_t
	for {
		err := unix.Stat(path, &st)
		switch err {
		case nil:
			return Of(&st), nil
		case unix.EINTR:
			continue
		case unix.ENOENT, unix.ENOTDIR:
			return ID{}, nil
		}
		return ID{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
}

const (
	// tickWindow is longer than two ticks of the slowest clock that stamps files (10 ms at HZ=100).
	tickWindow = 25 * time.Millisecond
	// coarseWindow is the granularity of the coarsest file system (FAT); others have one second.
	coarseWindow = 2 * time.Second
)

// Settled reports whether a file that was read after now and had this ID at now cannot change any more without its ID
// changing too: not before the clock that stamps files has moved on. A stamp in the future never settles.
func (id ID) Settled(now time.Time) bool {
	if id == (ID{}) {
		return true
	}
	window := tickWindow
	if id.Mtime%int64(time.Second) == 0 || id.Ctime%int64(time.Second) == 0 {
		window += coarseWindow
	}
	return now.UnixNano()-max(id.Mtime, id.Ctime) >= int64(window)
}

// Below tells whether path is dir or lies below it; both are clean, and it is for the caller to have them free of
// symbolic links.
func Below(dir, path string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
