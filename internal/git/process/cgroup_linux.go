package process

import "os"

// startIn starts a process in the control group of the commands from its first instruction on (clone3(2),
// CLONE_INTO_CGROUP). It starts outside if there is no group, if the group was removed, or if the kernel or a filter of
// system calls does not support clone3.
func (r *Runner) startIn(program string, args []string, attr *os.ProcAttr) (*os.Process, error) {
	dir := r.group.Directory()
	if dir == nil {
		return os.StartProcess(program, args, attr)
	}
	attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(dir.Fd())
	p, err := os.StartProcess(program, args, attr)
	if err == nil {
		return p, nil
	}
	attr.Sys.UseCgroupFD = false
	p, outside := os.StartProcess(program, args, attr)
	if outside == nil {
		r.group.Refused(err)
	}
	return p, outside
}
