package process

import "os"

// startIn starts a process in a cgroup from its first instruction on (clone3(2), CLONE_INTO_CGROUP), or where this process is if there is no such group.
// A group that does not take it in, and a kernel or a filter of system calls that knows no clone3, does not keep it from running.
func (r *Runner) startIn(group, program string, args []string, attr *os.ProcAttr) (*os.Process, error) {
	dir := r.cgroups.Directory(group)
	if dir == nil {
		return os.StartProcess(program, args, attr)
	}
	attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(dir.Fd())
	p, err := os.StartProcess(program, args, attr)
	if err == nil || shortageOf(err) != "" {
		return p, err
	}
	attr.Sys.UseCgroupFD = false
	p, outside := os.StartProcess(program, args, attr)
	if outside == nil {
		r.cgroups.Refused(group, err)
	}
	return p, outside
}
