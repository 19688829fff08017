package bulk

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A peer is slow if its socket is full for slowWait. Streams to it use small pipes until it has accepted leastQuick
// bytes without being slow again, so that slow peers do not hold all large pipes. The kernel reports room in a full
// socket only when a third of its buffer of at most 4 MiB is free. So a peer that stays slow never accepts leastQuick
// bytes.
const (
	slowWait   = 200 * time.Millisecond
	leastQuick = 4 << 20
)

// splicer is the state of one copy from another connection into a Conn. It is part of the Conn, and its step functions
// are bound once, so that a copy allocates nothing.
type splicer struct {
	conn                *Conn // where the bytes go
	fillStep, drainStep func(fd uintptr) bool

	stream *Stream
	pipe   *pipe // held while it has bytes, or a turn is held
	inPipe int   // bytes in pipe
	turn   bool  // a turn is held
	waited bool  // for the source
	done   int64
	noted  int64 // the part of done that was reported to Conn.progress
	err    error

	// State of the receiving peer, for all streams:
	full time.Time // start of the time in which its socket is full; zero: it is not full
	slow int64     // number of bytes that it has to accept until it is no longer slow
}

func (r *splicer) init(c *Conn) {
	r.conn = c
	r.fillStep, r.drainStep = r.fillSome, r.drainSome
}

// send moves the stream's bytes to the connection. A turn covers one step: into the pipe and out of it.
func (r *splicer) send(s *Stream) (int64, error) {
	r.stream, r.done, r.noted, r.err = s, 0, 0, nil
	defer r.end()
	s.unlimit()
	for s.N > 0 {
		if err := r.fill(); err != nil {
			return r.done, err
		}
		if err := r.drain(); err != nil {
			return r.done, err
		}
	}
	return r.done, nil
}

// end releases the turn and the pipe after a failure.
func (r *splicer) end() {
	r.release()
	r.stream, r.inPipe, r.full = nil, 0, time.Time{}
}

// take takes a turn, unless one is held.
func (r *splicer) take() {
	if !r.turn {
		r.conn.pump.take(&r.conn.turn)
		r.turn = true
	}
}

// give gives the turn back.
func (r *splicer) give() {
	if r.turn {
		r.turn = false
		r.conn.pump.give()
	}
}

// release gives back the turn and the pipe.
func (r *splicer) release() {
	r.give()
	if r.pipe != nil {
		r.conn.pump.pipes.put(r.pipe, r.inPipe > 0)
		r.pipe = nil
	}
}

// fill moves bytes from the source into the pipe. Unless it fails, a turn is held afterwards.
func (r *splicer) fill() error {
	s := r.stream
	err := s.From.raw.Read(r.fillStep)
	if r.waited && r.stopWaiting() {
		return net.ErrClosed // the destination was closed
	}
	if err == nil {
		err = r.err
	}
	if err == nil || unsupported(err) {
		return err
	}
	return s.fail(err)
}

// fillSome moves available bytes of the source into the pipe. It returns false to wait for the source.
func (r *splicer) fillSome(source uintptr) bool {
	s, pump := r.stream, r.conn.pump
	r.take()
	if r.pipe == nil {
		if r.pipe, r.err = pump.pipes.get(r.size()); r.err != nil {
			// Most likely no file descriptors are left.
			r.err = errors.Join(errors.ErrUnsupported, r.err)
			r.give()
			return true
		}
	}
	for {
		n, err := unix.Splice(int(source), nil, r.pipe.w, nil, int(min(s.N, pump.step())),
			unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			r.release()
			return r.wait()
		case err != nil:
			r.err = os.NewSyscallError("splice", err)
		case n == 0:
			r.err = io.ErrUnexpectedEOF
		default:
			s.N -= n
			r.inPipe = int(n)
		}
		return true
	}
}

// size returns the size of a pipe for the peer.
func (r *splicer) size() pipeSize {
	if r.slow > 0 {
		return small
	}
	return large
}

// kept records how long the peer's socket was full.
func (r *splicer) kept(d time.Duration) {
	r.full = time.Time{}
	if d >= slowWait {
		r.slow = leastQuick
	}
}

// took records that the peer has accepted n bytes.
func (r *splicer) took(n int64) { r.slow -= min(r.slow, n) }

// wait sets the source's deadline before a wait. It returns true if fillSome must not wait.
func (r *splicer) wait() (done bool) {
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.waited = true; c.closed {
		return true
	}
	c.source = r.stream.From
	r.err = r.stream.limit()
	return r.err != nil
}

// stopWaiting ends a wait, and reports whether the destination was closed.
func (r *splicer) stopWaiting() (closed bool) {
	c := r.conn
	r.waited = false
	c.mu.Lock()
	defer c.mu.Unlock()
	c.source = nil
	r.stream.unlimit()
	return c.closed
}

// drain empties the pipe into the connection.
func (r *splicer) drain() error {
	c := r.conn
	if err := c.begin(); err != nil {
		return err
	}
	err := c.raw.Write(r.drainStep)
	c.end(r.done - r.noted)
	r.noted = r.done
	if err == nil {
		err = r.err
	}
	if unsupported(err) {
		err = fmt.Errorf("%v after bytes were taken", err) // hides ErrUnsupported: the pipe still has bytes
	}
	return err
}

// drainSome empties the pipe until the socket is full. It returns false to wait for the socket, with bytes in the pipe
// and without a turn.
func (r *splicer) drainSome(socket uintptr) bool {
	if !r.full.IsZero() {
		r.kept(time.Since(r.full))
	}
	for r.inPipe > 0 {
		r.take()
		n, err := unix.Splice(r.pipe.r, nil, int(socket), nil, r.inPipe, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			r.give()
			r.full = time.Now()
			r.err = r.conn.progress(r.done - r.noted)
			r.noted = r.done
			return r.err != nil
		case err != nil:
			r.err = os.NewSyscallError("splice", err)
			return true
		case n == 0:
			r.err = os.NewSyscallError("splice", syscall.EPIPE) // cannot happen, because the pipe is not empty
			return true
		}
		r.inPipe -= int(n)
		r.done += n
		r.took(n)
		r.stream.kernel += n
		r.stream.count(n)
	}
	r.release()
	return true
}
