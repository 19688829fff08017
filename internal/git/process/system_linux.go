package process

import (
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// closeOnExec keeps descriptors that this process was started with, without close-on-exec, from its children.
func closeOnExec() {
	unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC) // Linux 5.11; without it they are inherited
}

// pipe makes a pipe that no child inherits.
func pipe() (fds [2]int, err error) {
	err = unix.Pipe2(fds[:], unix.O_CLOEXEC)
	return fds, err
}

// enlargePipe enlarges a pipe if fs.pipe-max-size and fs.pipe-user-pages-soft allow it.
func enlargePipe(fd, n int) {
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, n) // otherwise it is slower
}

// limitMemory limits the private writable memory of a process and its children, on the heap or mapped (getrlimit(2),
// RLIMIT_DATA).
func limitMemory(pid int, bytes int64) error {
	return unix.Prlimit(pid, unix.RLIMIT_DATA, &unix.Rlimit{Cur: uint64(bytes), Max: uint64(bytes)}, nil)
}

// longSlice is the time slice of git while other processes want the CPU. A process with a shorter slice, about 3 ms by
// default, runs at once when it wakes (sched_setattr(2), sched_runtime; PREEMPT_SHORT, Linux 6.12). Otherwise small
// requests would wait for the end of git's slice. Older kernels ignore it.
const longSlice = 20 * time.Millisecond

// setNice sets the niceness of a process group, and the time slice of its leader and the leader's later children.
func setNice(pid, nice int) error {
	if err := syscall.Setpriority(syscall.PRIO_PGRP, pid, nice); err != nil {
		return err
	}
	_ = unix.SchedSetAttr(pid, &unix.SchedAttr{ // an error is ignored
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: int32(nice), Runtime: uint64(longSlice),
	}, 0)
	return nil
}

// niceness returns the niceness of this process.
func niceness() int {
	n, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	if err != nil {
		return 0
	}
	return 20 - n // the result of the system call is never negative
}

// rssSampler samples the peak resident size of a process. The kernel's own value (ru_maxrss) starts with the size of
// the server that started the process, because exec counts the memory it replaces. So it is valid only for children
// larger than the server.
type rssSampler struct {
	own int64 // peak resident size of the server at the start in bytes

	mu    sync.Mutex
	timer *time.Timer
	peak  int64
	over  bool
}

// sampling starts often, for short commands, and slows down to this.
const slowestSampling = 2 * time.Second

func (s *rssSampler) start(pid int) {
	var ru unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &ru) == nil {
		s.own = ru.Maxrss << 10
	}
	every := 8 * time.Millisecond
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peak = residentPeak(pid) // the only sample of a short command
	s.timer = time.AfterFunc(every, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.over {
			return
		}
		s.peak = max(s.peak, residentPeak(pid))
		every = min(2*every, slowestSampling)
		s.timer.Reset(every)
	})
}

// stop ends the sampling. Call it before the process is reaped, because then its ID can be reused.
func (s *rssSampler) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.timer.Stop()
}

// max returns the peak resident size: the kernel's value if the child outgrew the server, otherwise the sampled one.
func (s *rssSampler) max(state *os.ProcessState) int64 {
	ru, ok := state.SysUsage().(*syscall.Rusage)
	if rss := int64(ru.Maxrss) << 10; ok && rss > s.own {
		return rss
	}
	return s.peak
}

// residentPeak returns the peak resident size of a process in bytes; 0 if it has ended.
func residentPeak(pid int) int64 {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0
	}
	s, err := p.NewStatus()
	if err != nil {
		return 0
	}
	return int64(s.VmHWM)
}
