package gitload

import (
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

func canSplice() error { return nil }

// splicePipe is the size of a relay's pipe if the limits permit. Go's own splice requests the same.
const splicePipe = 1 << 20

// splicer moves bytes from one connection to another through a pipe, which is empty between two moves. Not safe for
// concurrent use.
type splicer struct {
	from, to syscall.RawConn
	r, w     int // the pipe
	step     int // capacity of the pipe
}

func newSplicer(from, to *net.TCPConn) (*splicer, error) {
	s := &splicer{step: 64 << 10}
	var err, other error
	s.from, err = from.SyscallConn()
	s.to, other = to.SyscallConn()
	if err := errors.Join(err, other); err != nil {
		return nil, err
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, err
	}
	s.r, s.w = ends[0], ends[1]
	if n, err := unix.FcntlInt(uintptr(s.w), unix.F_SETPIPE_SZ, splicePipe); err == nil {
		s.step = n
	}
	return s, nil
}

func (s *splicer) close() {
	unix.Close(s.r)
	unix.Close(s.w)
}

// move moves n bytes.
func (s *splicer) move(n int64) error {
	for n > 0 {
		got, err := splice(s.from.Read, func(fd int) (int64, error) {
			return unix.Splice(fd, nil, s.w, nil, int(min(n, int64(s.step))), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		})
		if err != nil {
			return err
		}
		n -= got
		for got > 0 {
			sent, err := splice(s.to.Write, func(fd int) (int64, error) {
				return unix.Splice(s.r, nil, fd, nil, int(got), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
			})
			if err != nil {
				return err
			}
			got -= sent
		}
	}
	return nil
}

// splice retries call until the socket is ready. wait is the Read or Write of its RawConn.
func splice(wait func(func(fd uintptr) bool) error, call func(fd int) (int64, error)) (n int64, err error) {
	waited := wait(func(fd uintptr) bool {
		for {
			if n, err = call(int(fd)); err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	if err == nil && waited == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, errors.Join(waited, err)
}
