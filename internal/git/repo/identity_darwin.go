package repo

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// identity identifies a directory as long as it exists: device, inode and birth time, which differs if an inode is
// reused.
func identity(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return "", &os.PathError{Op: "stat", Path: path, Err: unix.ENOTDIR}
	}
	return fmt.Sprintf("%d:%d:%d.%d", st.Dev, st.Ino, st.Btim.Sec, st.Btim.Nsec), nil
}
