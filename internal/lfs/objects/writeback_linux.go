package objects

import (
	"os"

	"golang.org/x/sys/unix"
)

// startWriteback has the kernel begin to write a part of a file to disk. So the sync at the end of a large upload does
// not have to write everything, which could take longer than clients wait.
func startWriteback(f *os.File, off, n int64) {
	_ = unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
}
