package process

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// startIn starts a process in a cgroup from its first instruction on (clone3(2), CLONE_INTO_CGROUP). Without a group
// the process starts in the cgroup of this process. So it does if the group refuses it, or if the kernel or a filter of
// system calls does not support clone3.
func (r *Runner) startIn(group, program string, args []string, attr *os.ProcAttr) (*os.Process, error) {
	dir := r.cgroups.Directory(group)
	if dir == nil {
		return os.StartProcess(program, args, attr)
	}
	attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(dir.Fd())
	p, err := os.StartProcess(program, args, attr)
	if err == nil || !refusedBy(dir, err) {
		return p, err
	}
	attr.Sys.UseCgroupFD = false
	p, outside := os.StartProcess(program, args, attr)
	if outside == nil {
		r.cgroups.Refused(group, err)
	}
	return p, outside
}

// refusals are errors of clone3(2) that may be caused by the cgroup or by the call itself. The group may not be
// entered, has an invalid type, has controllers below it, or is being removed. The descriptor may be closed, the kernel
// too old, or a filter of system calls in the way.
var refusals = []error{
	syscall.EACCES, syscall.EPERM, syscall.EOPNOTSUPP, syscall.EBUSY, syscall.ENODEV, syscall.EBADF, syscall.ENOSYS,
	syscall.EINVAL, syscall.E2BIG,
}

// refusedBy reports whether a start failed because of the cgroup. ENOENT may be about the program, its working
// directory, or a group that was removed.
func refusedBy(dir *os.File, err error) bool {
	if errors.Is(err, syscall.ENOENT) {
		_, gone := os.Stat(dir.Name())
		return errors.Is(gone, fs.ErrNotExist)
	}
	return slices.ContainsFunc(refusals, func(refusal error) bool { return errors.Is(err, refusal) })
}
