package backup

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncFileSystem writes all files of the file system of a directory to disk.
func syncFileSystem(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}
