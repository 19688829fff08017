package search

import (
	"os"
	"runtime"
	"syscall"
)

// startNiced starts a process that is nicer than this one from its first instruction on: here each thread has a
// priority of its own, and a process begins with that of the thread which starts it. That thread ends with its
// goroutine, because it could not become as it was.
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
			syscall.Setpriority(syscall.PRIO_PROCESS, 0, 20-n+nice) // what cannot be nice runs as it is
		}
		p, err := os.StartProcess(program, args, attr)
		result <- started{p, err}
	}()
	r := <-result
	return r.process, r.err
}
