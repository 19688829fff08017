//go:build !linux

package process

import "os"

func (r *Runner) startIn(program string, args []string, attr *os.ProcAttr) (*os.Process, error) {
	return os.StartProcess(program, args, attr)
}
