package loadgen

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Urgent raises the calling thread's priority; false if that is not permitted. The thread has to be locked and is not to be
// given back.
func Urgent() bool { return unix.Setpriority(unix.PRIO_PROCESS, 0, UrgentNice) == nil }

// Yielding lowers the priority of the whole process.
func Yielding() { ProcessNice(LoadNice) } // the figures are a little worse without

// ProcessNice sets the priority of the whole process; false if that is not permitted. On Linux each thread has its own, and new ones
// have that of the thread which starts them: the second pass finds those that were started during the first.
func ProcessNice(nice int) bool {
	all := true
	for range 2 {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return false
		}
		for _, t := range threads {
			if id, err := strconv.Atoi(t.Name()); err == nil {
				if err := unix.Setpriority(unix.PRIO_PROCESS, id, nice); err != nil && err != unix.ESRCH {
					all = false
				}
			}
		}
	}
	return all
}

// SessionsShare says whether the scheduler gives this session a share of the CPUs that is as large as another's, whatever the priorities of its threads (sched(7),
// autogroup). In a control group for CPU time it does not.
func SessionsShare() bool {
	on, err := os.ReadFile("/proc/sys/kernel/sched_autogroup_enabled")
	if err != nil || strings.TrimSpace(string(on)) != "1" {
		return false
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(groups)) { // cgroups(7): hierarchy:controllers:path
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && f[2] != "/" && (f[1] == "" || slices.Contains(strings.Split(f[1], ","), "cpu")) {
			return false
		}
	}
	return true
}

// PreciseSleep is sleep without the runtime's timers, which are a millisecond coarse. It notices the context's end when the time is over.
func PreciseSleep(ctx context.Context, d time.Duration) bool {
	if d > 0 {
		left := unix.NsecToTimespec(int64(d))
		for unix.Nanosleep(&left, &left) == unix.EINTR {
		}
	}
	return ctx.Err() == nil
}
