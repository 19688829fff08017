package repo

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// identity names a directory for as long as it exists: device, inode and time of birth, which tells it from a later
// directory that was given the same inode.
func identity(path string) (string, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_INO|unix.STATX_BTIME|unix.STATX_TYPE, &st); err != nil {
		return "", &os.PathError{Op: "statx", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return "", &os.PathError{Op: "statx", Path: path, Err: unix.ENOTDIR}
	}
	return fmt.Sprintf("%d:%d:%d:%d.%d", st.Dev_major, st.Dev_minor, st.Ino, st.Btime.Sec, st.Btime.Nsec), nil
}
