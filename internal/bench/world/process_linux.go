package world

import "syscall"

// endWithUs makes the kernel end a process when this process ends for any reason. The kernel watches the thread that
// starts it.
func endWithUs(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGTERM }
