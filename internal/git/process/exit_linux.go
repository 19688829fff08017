package process

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// exitWatch waits for the end of a process. It uses a pidfd (pidfd_open(2)) in the runtime's poller, which needs no
// thread. If the kernel has no pidfds, it uses a thread.
type exitWatch struct{ fd int }

// attributes returns the attributes to start a process with. None of them may keep the runtime from using CLONE_VFORK
// and CLONE_VM, as a new user namespace would. A start would then copy the page tables of a server of many GiB.
func (w *exitWatch) attributes() *syscall.SysProcAttr {
	w.fd = -1
	return &syscall.SysProcAttr{Setpgid: true, PidFD: &w.fd}
}

// await blocks until the process has ended, and leaves it to be reaped. It is called once.
func (w *exitWatch) await(pid int) {
	if w.fd < 0 || !w.poll() {
		for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
	}
}

// poll waits by means of the descriptor, which it closes. It reports false if the system does not support that.
func (w *exitWatch) poll() bool {
	nonblock := syscall.SetNonblock(w.fd, true) // os.NewFile gives only non-blocking files to the poller
	f := os.NewFile(uintptr(w.fd), "pidfd")
	defer f.Close()
	c, err := f.SyscallConn()
	if nonblock != nil || err != nil {
		return false
	}
	return c.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil && err != unix.EINTR
	}) == nil
}
