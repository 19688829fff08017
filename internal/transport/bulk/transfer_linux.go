package bulk

import (
	"fmt"
	"io"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kernelCopies reports whether this platform copies by sendfile and splice.
const kernelCopies = true

// readAheadBy is the number of bytes that the kernel reads ahead.
const readAheadBy = 2 << 20

// probeStep is the number of bytes that count as cached if the first and the last of them are in the page cache. With
// 256 KiB the checks took a tenth of a copy's CPU time.
const probeStep = 1 << 20

// warmTime is how long pages count as cached after a check.
const warmTime = time.Second

// transfer is the state of one copy into a Conn. It is part of the Conn, and its step functions are bound once, so that
// a copy allocates nothing.
type transfer struct {
	conn *Conn

	sendSteps func(fd uintptr) bool
	section   *Section
	source    int // the section's file descriptor
	probe     [1]byte
	iov       unix.Iovec    // points at probe
	warmed    int64         // end of the bytes of source that are in the page cache; 0: not known
	warmedAt  time.Duration // when they were checked, by the pump's clock

	writeSteps func(fd uintptr) bool
	data       []byte

	done  int64
	noted int64 // the part of done that was reported to Conn.progress
	err   error
}

func (t *transfer) init(c *Conn) {
	t.conn = c
	t.iov.Base = &t.probe[0]
	t.iov.SetLen(1)
	sendfile, write := t.sendfile, t.writeSome
	t.sendSteps = func(fd uintptr) bool { return t.steps("sendfile", int(fd), sendfile) }
	t.writeSteps = func(fd uintptr) bool { return t.steps("write", int(fd), write) }
}

// send copies the section's bytes to the connection.
func (t *transfer) send(s *Section) (int64, error) {
	source, err := s.File.SyscallConn()
	if err != nil {
		s.err = err
		return 0, err
	}
	t.section, t.warmed, t.done, t.noted, t.err = s, 0, 0, 0, nil
	defer func() { t.section = nil }()
	// The descriptor stays valid inside Control; a regular file's Control takes no lock that other readers of the file
	// need.
	cerr := source.Control(func(fd uintptr) {
		t.source = int(fd)
		err = t.run(t.sendSteps)
	})
	if cerr != nil {
		err = cerr
	}
	return t.done, err
}

// write copies p to the connection.
func (t *transfer) write(p []byte) (int, error) {
	t.data, t.done, t.noted, t.err = p, 0, 0, nil
	defer func() { t.data = nil }()
	err := t.run(t.writeSteps)
	return int(t.done), err
}

// run calls steps until all is sent. The peer gets a new time limit for each leastProgress bytes.
func (t *transfer) run(steps func(fd uintptr) bool) error {
	if err := t.conn.begin(); err != nil {
		return err
	}
	defer func() { t.conn.end(t.done - t.noted) }()
	if err := t.conn.raw.Write(steps); err != nil {
		return err
	}
	return t.err
}

// steps calls step until nothing is left or the socket is full. It returns false to wait for the socket. A step that
// has nothing to send returns io.EOF.
func (t *transfer) steps(call string, socket int, step func(socket int) (int, error)) bool {
	for {
		n, err := step(socket)
		switch {
		case err == io.EOF:
			return true
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			// The peer may get a new time limit for the bytes that it has accepted.
			t.err = t.conn.progress(t.done - t.noted)
			t.noted = t.done
			return t.err != nil
		case err != nil:
			t.err = os.NewSyscallError(call, err)
			return true
		case n == 0:
			t.err = io.ErrUnexpectedEOF // the file is shorter than the section
			return true
		default:
			t.done += int64(n)
		}
	}
}

// sendfile sends some of the section.
func (t *transfer) sendfile(socket int) (int, error) {
	s, pump := t.section, t.conn.pump
	if s.N <= 0 {
		return 0, io.EOF
	}
	if s.done() {
		return 0, ErrDone
	}
	n := int(min(s.N, pump.step()))
	if err := t.warm(s.Offset, n); err != nil {
		s.err = err
		return 0, err
	}
	offset := s.Offset
	pump.take(&t.conn.turn)
	n = min(n, int(pump.step())) // a small request may have arrived meanwhile
	sent, err := unix.Sendfile(socket, t.source, &offset, n)
	pump.give()
	switch {
	case err == nil && sent == 0:
		s.err = io.ErrUnexpectedEOF // the file is shorter than the section
	case err == nil:
		s.kernel += int64(sent)
		s.advance(int64(sent))
	case !unsupported(err) && !ofSocket(err):
		s.err = err
	}
	return sent, err
}

// ofSocket reports whether an error of sendfile is temporary or concerns the connection. Others concern the file.
func ofSocket(err error) bool {
	switch err {
	case unix.EAGAIN, unix.EINTR, unix.EPIPE, unix.ECONNRESET, unix.ECONNABORTED, unix.ETIMEDOUT, unix.ENOTCONN,
		unix.EHOSTUNREACH, unix.ENETUNREACH,
		unix.ENETDOWN, unix.EHOSTDOWN, unix.ENETRESET, unix.ENOBUFS, unix.ENOMEM, unix.EBADF, unix.EPROTO:
		return true
	}
	return false
}

// writeSome writes some of the data.
func (t *transfer) writeSome(socket int) (int, error) {
	if len(t.data) == 0 {
		return 0, io.EOF
	}
	t.conn.pump.takeOwn(&t.conn.turn)
	n, err := unix.Write(socket, t.data[:min(len(t.data), narrowStep)])
	t.conn.pump.give()
	if err == nil {
		t.data = t.data[n:]
	}
	return n, err
}

// warm loads the next n bytes into the page cache before a turn. During a turn, other copies would wait for the disk as
// well. It requests a read-ahead only if a page is missing, because that call checks every page, and costs a fifth of
// the copy. Pages that were in the cache a moment ago are not checked again: a socket accepts a part of n bytes.
func (t *transfer) warm(offset int64, n int) error {
	if now := t.conn.pump.now(); t.warmed == 0 || now-t.warmedAt > warmTime {
		t.warmed, t.warmedAt = offset, now
		if err := t.warmRange(offset, offset+1); err != nil {
			return err
		}
	}
	for end := offset + int64(n); t.warmed < end; {
		next := min(t.warmed+probeStep, end)
		if err := t.warmRange(t.warmed, next); err != nil {
			return err
		}
		t.warmed = next
	}
	return nil
}

// warmRange waits for the first and the last page of a range, if the last one is missing.
func (t *transfer) warmRange(offset, end int64) error {
	if t.cached(end - 1) {
		return nil
	}
	_ = unix.Fadvise(t.source, offset, readAheadBy, unix.FADV_WILLNEED)
	for _, at := range []int64{offset, end - 1} {
		if _, err := unix.Pread(t.source, t.probe[:], at); err != nil && err != unix.EINTR {
			return fmt.Errorf("read ahead: %w", err)
		}
	}
	return nil
}

// cached reports whether a byte of the source can be read without waiting for a disk. It returns true on file systems
// without RWF_NOWAIT. Those either need no disk, as tmpfs, or sendfile waits. The call never blocks, so the scheduler,
// whose part of the cost is a third, need not know of it.
func (t *transfer) cached(at int64) bool {
	_, _, errno := unix.RawSyscall6(unix.SYS_PREADV2, uintptr(t.source), uintptr(unsafe.Pointer(&t.iov)), 1, uintptr(at),
		0, unix.RWF_NOWAIT)
	return errno != unix.EAGAIN
}

// hasEnded reports whether the peer of a socket has closed its side, or all of it, even if some of its bytes are
// unread. known is false if that cannot be determined.
func hasEnded(fd uintptr) (ended, known bool) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return n > 0 && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0, err == nil || err == unix.EINTR
}
