// Package disk opens, maps and identifies files that other programs may replace at any time.
//
// A path of another program may lead to something else than a file. Opening a named pipe, for example, waits for a
// writer. Open refuses it. A path may also lead to another file than before, or to the same file with other bytes. ID
// detects that. A file may become shorter while it is mapped, and Mapping turns the fault into an error. All reads of
// repositories use this package. Below reports whether a path is inside a directory, and Space how much room is left.
package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// errNotRegular is the cause where a path leads to a directory, a pipe, a socket or a device.
var errNotRegular = errors.New("not a regular file")

// Open opens a regular file for reading. It follows symbolic links and never waits. If the path leads to something
// else, the error is of kind fault.Corrupt. Other errors are those of os.Open.
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
	return fault.Wrap(fault.Corrupt, "a file that the server needs is not a regular file",
		&fs.PathError{Op: "open", Path: path, Err: errNotRegular})
}

// ID identifies one state of a file or directory without reading it. Compare IDs with ==. The zero ID means that there
// is no such file.
type ID struct {
	Dev, Ino     uint64
	Size         int64
	Mtime, Ctime int64 // nanoseconds since 1970
}

// Of returns the ID for a result of stat.
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

// Stat returns the ID of the file at path, following symbolic links. If there is no file, it returns the zero ID and no
// error.
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

// Settled reports whether any later change of a file changes this ID too. The file must have been read after now and
// had this ID at now. That holds only after the clock that stamps files has advanced. An ID with a stamp in the future
// never settles.
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

// RealPath returns an absolute path without symbolic links. The file and its parents need not exist.
func RealPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) || filepath.Dir(path) == path {
		return real, err
	}
	parent, err := RealPath(filepath.Dir(path))
	return filepath.Join(parent, filepath.Base(path)), err
}

// Below reports whether path is dir or is below it. Both must be clean and free of symbolic links.
func Below(dir, path string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
