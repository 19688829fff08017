package buckettest

import (
	"os/exec"
	"syscall"
)

// endWithUs ends a server with a killed test.
func endWithUs(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
