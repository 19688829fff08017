package bench

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// urgent raises the calling thread's priority; false if that is not permitted. The thread has to be locked and is not to be
// given back.
func urgent() bool { return unix.Setpriority(unix.PRIO_PROCESS, 0, urgentNice) == nil }

// yielding lowers the priority of the whole process. On Linux each thread has its own, and new ones have that of the thread which
// starts them: the second pass finds those that were started during the first.
func yielding() {
	for range 2 {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return
		}
		for _, t := range threads {
			if id, err := strconv.Atoi(t.Name()); err == nil {
				unix.Setpriority(unix.PRIO_PROCESS, id, loadNice) //nolint:errcheck // the figures are a little worse without
			}
		}
	}
}
