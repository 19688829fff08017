package reaper

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const supported = true

// makePipe makes a pipe. Writes to it do not block. Children close it at their exec.
func makePipe() (reader, writer *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	// Created in blocking mode, so that the runtime does not poll it; see Keeper.send.
	reader, writer = os.NewFile(uintptr(fds[0]), "|0"), os.NewFile(uintptr(fds[1]), "|1")
	if err := unix.SetNonblock(fds[1], true); err != nil {
		reader.Close()
		writer.Close()
		return nil, nil, os.NewSyscallError("setnonblock", err)
	}
	return reader, writer, nil
}

func session() int {
	sid, _ := unix.Getsid(0)
	return sid
}

// spawn starts a reaper in a separate session, so that it gets no signals of a terminal. It logs to the server's
// standard error.
func spawn(command []string, stdin *os.File) (*os.Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	program := command[0]
	if self, err := os.Executable(); err == nil && self == program {
		program = "/proc/self/exe" // this program, even if its file was replaced
	}
	// If the disk hangs, it hangs here. In the child it would block a CPU of the Go runtime until the exec.
	if f, err := os.Open(program); err == nil {
		f.Read(make([]byte, 4<<10))
		f.Close()
	}
	return os.StartProcess(program, command, &os.ProcAttr{
		Dir: "/", Env: []string{"GOMAXPROCS=1", "LC_ALL=C"}, Files: []*os.File{stdin, null, os.Stderr},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
}
