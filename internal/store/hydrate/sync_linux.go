package hydrate

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncFiles writes all files of the file system of dir to disk.
func syncFiles(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd())))
}
