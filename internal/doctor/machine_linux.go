package doctor

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const rlimitProcesses = unix.RLIMIT_NPROC

// limitsOf are the hard limits of a process; 0 is this one.
func limitsOf(pid int) (files, processes uint64, err error) {
	if pid == 0 {
		return ownLimits()
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "Max open files"); ok {
			files = hardLimit(rest)
		}
		if rest, ok := strings.CutPrefix(line, "Max processes"); ok {
			processes = hardLimit(rest)
		}
	}
	return files, processes, nil
}

// hardLimit is the second column of a line in /proc/PID/limits (proc(5)).
func hardLimit(columns string) uint64 {
	fields := strings.Fields(columns)
	if len(fields) < 2 {
		return 0
	}
	n, err := strconv.ParseUint(fields[1], 10, 64)
	if err != nil {
		return 1<<64 - 1 // "unlimited"
	}
	return n
}

// clockState is what the kernel knows of the clock (adjtimex(2)).
func clockState() (synchronised, known bool) {
	const timeError = 5 // TIME_ERROR
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return state != timeError && t.Status&unix.STA_UNSYNC == 0, err == nil
}

// fileSkew is by how much the time of a new file without a name, which is gone when it is closed, differs from the clock.
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
