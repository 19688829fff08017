package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Space returns the size of the file system of a directory and its available space, in bytes.
func Space(dir string) (size, free int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	block := uint64(st.Bsize)
	return int64(uint64(st.Blocks) * block), int64(uint64(st.Bavail) * block), nil
}

// Floor returns the default of the space that stays free on a file system of a size: a twentieth, at most 5 GiB.
func Floor(size int64) int64 { return min(size/20, 5<<30) }

// IsFull reports whether more room on the disk, or in a quota, would help.
func IsFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
