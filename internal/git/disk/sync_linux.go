package disk

import (
	"os"

	"golang.org/x/sys/unix"
)

// SyncFileSystem writes all files of the file system of a directory to disk.
func SyncFileSystem(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd())))
}
