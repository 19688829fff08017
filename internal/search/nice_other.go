//go:build !linux

package search

import (
	"os"
	"syscall"
)

// startNiced starts a niced process.
func startNiced(program string, args []string, attr *os.ProcAttr, nice int) (*os.Process, error) {
	p, err := os.StartProcess(program, args, attr)
	if err == nil && nice != 0 {
		syscall.Setpriority(syscall.PRIO_PROCESS, p.Pid, nice) // without it, the process runs with normal priority
	}
	return p, err
}
