package repo

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// identity identifies a directory as long as it exists: device, inode and birth time, which differs if an inode is
// reused.
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
