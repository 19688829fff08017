package loadgen

import "syscall"

// endWithUs makes the kernel end a child when this process ends for any reason. The kernel watches the thread that
// starts the child.
func endWithUs(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGTERM }
