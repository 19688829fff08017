//go:build unix

package packcache

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// tryLock takes an exclusive lock that ends with the file's last descriptor. It returns false if another process has
// it.
func tryLock(f *os.File) (bool, error) {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// isBusy reports whether a file could not be opened for lack of descriptors or memory, and not because of the file.
func isBusy(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}

// isDamage reports whether the disk failed to read or write.
func isDamage(err error) bool { return errors.Is(err, unix.EIO) }

// causeOf returns the cause of a write error for the metrics.
func causeOf(err error) string {
	switch {
	case errors.Is(err, errBudget):
		return "size"
	case errors.Is(err, errFloor):
		return "floor"
	case errors.Is(err, unix.ENOSPC):
		return "enospc"
	case errors.Is(err, unix.EDQUOT):
		return "edquot"
	case isDamage(err):
		return "eio"
	case isBusy(err):
		return "descriptors"
	}
	return "other"
}
