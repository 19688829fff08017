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
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return later(info.ModTime(), time.Unix(st.Atim.Unix()))
	}
	return info.ModTime()
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// touch sets the time of access of a file, and no other, unless it was used just now.
func (l leaf) touch(now time.Time) {
	var st unix.Stat_t
	err := statAt(l.dir, l.base, &st)
	if err != nil || now.Sub(later(time.Unix(st.Mtim.Unix()), time.Unix(st.Atim.Unix()))) < touchInterval {
		return
	}
	access, err := unix.TimeToTimespec(now)
	if err == nil {
		_ = unix.UtimesNanoAt(l.dir, l.base, []unix.Timespec{access, {Nsec: unix.UTIME_OMIT}}, unix.AT_SYMLINK_NOFOLLOW)
	}
}

// hideReads keeps reads of a file from being uses. It works only for the owner.
func hideReads(f *os.File) {
	_, _ = unix.FcntlInt(f.Fd(), unix.F_SETFL, unix.O_NOATIME)
}
