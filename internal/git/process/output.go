package process

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// Output is the read end of a command's standard output. Only one goroutine may read it. Others may set deadlines.
//
// It is not in the runtime's poller. Git writes in pieces of 8 KiB, and with a poller the kernel wakes this process for
// each of them. That is 8,500 times for a pack of 70 MB, and costs more than copying it. Instead, Read retries after a
// pause if the pipe is empty. Without a reader to wake, git's writes are cheaper too.
type Output struct {
	file     *os.File     // does not block
	deadline atomic.Int64 // ns since the epoch; 0: none
	n        atomic.Int64 // bytes that were read
}

// Pauses before Read retries. The first is for short commands. The last makes 100 retries a second for an idle command.
const (
	shortestPause = 200 * time.Microsecond
	longestPause  = 10 * time.Millisecond
)

// Read reads the available bytes, and waits if there are none. Its errors are os.ErrDeadlineExceeded, io.EOF, and those
// of read(2).
func (o *Output) Read(b []byte) (int, error) {
	for pause := shortestPause; ; pause = min(2*pause, longestPause) {
		if o.late() {
			return 0, os.ErrDeadlineExceeded
		}
		n, err := o.file.Read(b)
		if !errors.Is(err, syscall.EAGAIN) {
			o.n.Add(int64(max(n, 0)))
			return n, err
		}
		time.Sleep(pause)
	}
}

func (o *Output) late() bool {
	at := o.deadline.Load()
	return at != 0 && time.Now().UnixNano() >= at
}

// SetReadDeadline sets the time at which a waiting Read and later ones fail. The zero time means no deadline.
func (o *Output) SetReadDeadline(t time.Time) {
	if t.IsZero() {
		o.deadline.Store(0)
		return
	}
	o.deadline.Store(t.UnixNano())
}

// Close closes the reader's end. SIGPIPE kills the command at its next write.
func (o *Output) Close() error { return o.file.Close() }

// makeOutput creates the pipe, of size bytes if the system allows that, and also returns the child's end.
func makeOutput(size int) (*Output, *os.File, error) {
	fds, err := pipe()
	if err != nil {
		return nil, nil, os.NewSyscallError("pipe", err)
	}
	// Created in blocking mode, so that the runtime does not poll it.
	o := &Output{file: os.NewFile(uintptr(fds[0]), "|0")}
	child := os.NewFile(uintptr(fds[1]), "|1")
	if err := syscall.SetNonblock(fds[0], true); err != nil {
		o.Close()
		child.Close()
		return nil, nil, os.NewSyscallError("setnonblock", err)
	}
	if size > 0 {
		enlargePipe(fds[0], size)
	}
	return o, child, nil
}
