package search

import (
	"os"
	"runtime"
	"syscall"
)

// startNiced starts a process that is niced from its first instruction on. On Linux each thread has a priority of its
// own, and a process inherits that of the thread that starts it. The thread ends with its goroutine, because its
// priority cannot be restored.
func startNiced(program string, args []string, attr *os.ProcAttr, nice int) (*os.Process, error) {
	if nice == 0 {
		return os.StartProcess(program, args, attr)
	}
	type started struct {
		process *os.Process
		err     error
	}
	result := make(chan started)
	go func() {
		runtime.LockOSThread()
		if n, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0); err == nil {
			syscall.Setpriority(syscall.PRIO_PROCESS, 0, 20-n+nice) // without it, the process runs with normal priority
		}
		p, err := os.StartProcess(program, args, attr)
		result <- started{p, err}
	}()
	r := <-result
	return r.process, r.err
}
