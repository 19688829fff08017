//go:build !linux

package process

import (
	"errors"
	"os"
	"runtime"
	"syscall"
)

func closeOnExec() {}

// pipe makes a pipe that no child inherits.
func pipe() (fds [2]int, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err = syscall.Pipe(fds[:]); err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	return fds, err
}

func enlargePipe(int, int) {}

// exitWatch has no portable form: the reaping itself waits, and a group that outlives its leader is killed only by a
// cancelled context.
type exitWatch struct{}

func (*exitWatch) attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
func (*exitWatch) await(int)                        {}

func limitMemory(int, int64) error { return errors.ErrUnsupported }

func setNice(pid, nice int) error { return syscall.Setpriority(syscall.PRIO_PGRP, pid, nice) }

func niceness() int {
	n, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	if err != nil {
		return 0
	}
	return n
}

// rssSampler uses the kernel's value.
type rssSampler struct{}

func (*rssSampler) start(int) {}
func (*rssSampler) stop()     {}

func (*rssSampler) max(state *os.ProcessState) int64 {
	ru, ok := state.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	if runtime.GOOS == "darwin" {
		return int64(ru.Maxrss)
	}
	return int64(ru.Maxrss) << 10
}
