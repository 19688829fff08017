package doctor

import (
	"cmp"
	"time"

	"golang.org/x/sys/unix"
)

// limitsOf returns the hard limits of a process; 0 is this one.
func limitsOf(pid int) (files, processes uint64, err error) {
	var f, p unix.Rlimit
	err = cmp.Or(unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &f), unix.Prlimit(pid, unix.RLIMIT_NPROC, nil, &p))
	return f.Max, p.Max, err
}

// clockState returns the kernel's state of the clock (adjtimex(2)).
func clockState() (synchronised, known bool) {
	const timeError = 5 // TIME_ERROR
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return state != timeError && t.Status&unix.STA_UNSYNC == 0, err == nil
}

// fileSkew returns the difference between the clock and the time of a new file. The file has no name and disappears
// when it is closed.
func fileSkew(dir string) (time.Duration, bool) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	var s unix.Stat_t
	if _, err := unix.Write(fd, []byte{0}); err != nil {
		return 0, false
	}
	now := time.Now()
	if err := unix.Fstat(fd, &s); err != nil {
		return 0, false
	}
	return time.Unix(s.Mtim.Unix()).Sub(now), true
}
