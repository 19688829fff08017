package objects

import (
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// LastUse returns when the file of an object was last read, touched or renewed.
func LastUse(info fs.FileInfo) time.Time {
	mtime := info.ModTime()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		if atime := time.Unix(st.Atim.Unix()); atime.After(mtime) {
			return atime
		}
	}
	return mtime
}

// hideReads keeps reads of a file from being uses. It works only for the owner.
func hideReads(f *os.File) {
	_, _ = unix.FcntlInt(f.Fd(), unix.F_SETFL, unix.O_NOATIME)
}
