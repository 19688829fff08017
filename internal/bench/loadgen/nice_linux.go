package loadgen

import (
	"context"
	"os"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Yielding lowers the priority of the whole process.
func Yielding() { ProcessNice(LoadNice) } // the figures are slightly worse without

// ProcessNice sets the priority of the whole process. It returns false if that is not permitted. On Linux each thread
// has a priority, and a new thread inherits that of its creator. The second pass finds threads that were started during
// the first.
func ProcessNice(nice int) bool {
	all := true
	for range 2 {
		threads, err := procfs.AllThreads(os.Getpid())
		if err != nil {
			return false
		}
		for _, t := range threads {
			if err := unix.Setpriority(unix.PRIO_PROCESS, t.PID, nice); err != nil && err != unix.ESRCH {
				all = false
			}
		}
	}
	return all
}

// sleepUntil sleeps until a time. It returns false if the context ends first. Go's timers may be a millisecond late, so
// that the kernel measures the rest.
func sleepUntil(ctx context.Context, due time.Time) bool {
	const timerError = 1500 * time.Microsecond
	if !Sleep(ctx, time.Until(due)-timerError) {
		return false
	}
	for left := time.Until(due); left > 0; left = time.Until(due) {
		ts := unix.NsecToTimespec(int64(left))
		unix.Nanosleep(&ts, nil) //nolint:errcheck // the loop repeats an interrupted sleep
	}
	return true
}
