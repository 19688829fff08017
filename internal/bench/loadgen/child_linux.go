package loadgen

import "syscall"

// endWithUs has a child end when this process does, however that comes about. It follows the thread that starts the
// child.
func endWithUs(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGTERM }
