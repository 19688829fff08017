package loadgen

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Urgent raises the calling thread's priority; false if that is not permitted. The thread has to be locked and is not
// to be given back.
func Urgent() bool { return unix.Setpriority(unix.PRIO_PROCESS, 0, UrgentNice) == nil }

// Yielding lowers the priority of the whole process.
func Yielding() { ProcessNice(LoadNice) } // the figures are a little worse without

// ProcessNice sets the priority of the whole process; false if that is not permitted. On Linux each thread has its own,
// and new ones have that of the thread which starts them: the second pass finds those that were started during the
// first.
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

// SessionsShare says whether the scheduler gives this session a share of the CPUs that is as large as another's,
// whatever the priorities of its threads (sched(7), autogroup). In a control group for CPU time it does not.
func SessionsShare() bool {
	on, err := os.ReadFile("/proc/sys/kernel/sched_autogroup_enabled")
	if err != nil || strings.TrimSpace(string(on)) != "1" {
		return false
	}
	self, err := procfs.Self()
	if err != nil {
		return false
	}
	groups, err := self.Cgroups()
	if err != nil {
		return false
	}
	for _, g := range groups {
		if g.Path != "/" && (len(g.Controllers) == 0 || slices.Contains(g.Controllers, "cpu")) {
			return false
		}
	}
	return true
}

// PreciseSleep is sleep without the runtime's timers, which are a millisecond coarse. It notices the context's end when
// the time is over.
func PreciseSleep(ctx context.Context, d time.Duration) bool {
	if d > 0 {
		left := unix.NsecToTimespec(int64(d))
		for unix.Nanosleep(&left, &left) == unix.EINTR {
		}
	}
	return ctx.Err() == nil
}
