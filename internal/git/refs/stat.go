package refs

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// identity is a file's ID and what kind of file it is. The zero identity: there is no such file.
type identity struct {
	disk.ID
	kind fileKind
}

type fileKind uint8

const (
	missing fileKind = iota
	regular
	directory
	symlink
	special // a device, a pipe, a socket
)

// settled reports whether the identity can be trusted (disk.ID.Settled); now is in nanoseconds since 1970.
func (id identity) settled(now int64) bool {
	return id.kind == missing || id.ID.Settled(time.Unix(0, now))
}

func identityOf(st *unix.Stat_t) identity {
	id := identity{ID: disk.Of(st), kind: special}
	switch uint32(st.Mode) & unix.S_IFMT {
	case unix.S_IFREG:
		id.kind = regular
	case unix.S_IFDIR:
		id.kind = directory
	case unix.S_IFLNK:
		id.kind = symlink
	}
	return id
}

// stat reads the status of a path that ends in NUL. A missing file has the zero identity and no error.
func (s *Store) stat(path string, follow bool) (identity, error) {
	var st unix.Stat_t
	flags := unix.AT_SYMLINK_NOFOLLOW
	if follow {
		flags = 0
	}
	if err := fstatat(path, &st, flags); err != nil {
		if gone(err) {
			return identity{}, nil
		}
		return identity{}, ioError("looking at", path, err)
	}
	return s.identityOf(&st), nil
}

func (s *Store) fstat(fd int) (identity, error) {
	var st unix.Stat_t
	if err := ignoringEINTR(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return identity{}, err
	}
	return s.identityOf(&st), nil
}

func (s *Store) identityOf(st *unix.Stat_t) identity {
	id := identityOf(st)
	if s.coarsen != nil {
		id = s.coarsen(id)
	}
	return id
}

func ignoringEINTR(fn func() error) error {
	for {
		if err := fn(); err != unix.EINTR {
			return err
		}
	}
}

// gone reports whether a path does not exist, by the error of a system call.
func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) }

// ioError returns an error that is not due to the state of the repository. Temporary ones are Unavailable.
func ioError(action, path string, err error) error {
	kind := fault.Internal
	for _, passing := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN} {
		if errors.Is(err, passing) {
			kind = fault.Unavailable
		}
	}
	return fault.Wrap(kind, "the repository's refs cannot be read",
		fmt.Errorf("%s %s: %w", action, strings.TrimSuffix(path, "\x00"), err))
}
