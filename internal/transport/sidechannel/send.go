package sidechannel

import (
	"errors"
	"io"
	"os"
	"sync"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// bufferSize is the size in bytes of the buffer for small writes and for copies through user space.
const bufferSize = 32 << 10

// buffers are a Server's or a Pool's buffers.
type buffers struct{ pool sync.Pool }

func (b *buffers) get() *[bufferSize]byte {
	if p, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return p
	}
	return new([bufferSize]byte)
}

func (b *buffers) put(p *[bufferSize]byte) { b.pool.Put(p) }

// Sender is our direction of a transfer. After an error the channel is closed.
type Sender struct {
	c      *Channel
	length int64 // or unknown
	sent   int64 // bytes accepted
	begun  bool
	ended  bool
	files  bool // may be handed over
	err    error

	buffer   *[bufferSize]byte
	pending  []byte // in buffer
	buffered int64  // bytes in pending that are not headers
	frame    int    // position of the open DATA's header in pending; -1: none
}

// Write sends p. Small writes are buffered until Flush, End, or a larger one.
func (s *Sender) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, s.err
	}
	if err := s.begin(int64(len(p))); err != nil {
		return 0, err
	}
	if len(p) > min(bufferSize-len(s.pending), bufferSize/2) {
		return s.writeLong(p)
	}
	s.pending = append(s.pending, p...)
	s.sent += int64(len(p))
	s.buffered += int64(len(p))
	return len(p), nil
}

// writeLong sends the pending bytes, and then p.
func (s *Sender) writeLong(p []byte) (int, error) {
	if err := s.flush(int64(len(p))); err != nil {
		return 0, err
	}
	if err := s.c.line.write(p, s.c.line.limits.stall); err != nil {
		return 0, s.broken(err)
	}
	s.sent += int64(len(p))
	s.c.line.limits.metrics.countSent(0, int64(len(p)))
	return len(p), nil
}

// ReadFrom sends all of r. Without TLS the kernel moves a *bulk.Section or a *bulk.Stream. Other readers are copied
// through user space.
func (s *Sender) ReadFrom(r io.Reader) (int64, error) {
	l := s.c.line
	var n int64
	switch r := r.(type) {
	case *bulk.Section:
		if n = r.N; n >= leastHanded && s.files {
			if err := s.sendFile(r); !errors.Is(err, errors.ErrUnsupported) {
				return n - r.N, err
			}
		}
	case *bulk.Stream:
		n = r.N
	}
	if n <= 0 || l.kernel == nil {
		return s.copy(r)
	}
	if err := s.begin(n); err != nil {
		return 0, err
	}
	if err := s.flush(n); err != nil {
		return 0, err
	}
	counter := r.(interface{ KernelBytes() int64 })
	before := counter.KernelBytes()
	sent, err := l.kernel.ReadFrom(r)
	s.sent += sent
	kernel := counter.KernelBytes() - before
	l.limits.metrics.countSent(kernel, sent-kernel)
	if err == nil && sent != n {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return sent, s.broken(err)
	}
	return sent, nil
}

// copy sends all of r through user space.
func (s *Sender) copy(r io.Reader) (int64, error) {
	buf := s.c.line.limits.buffers.get()
	defer s.c.line.limits.buffers.put(buf)
	return io.CopyBuffer(struct{ io.Writer }{s}, struct{ io.Reader }{r}, buf[:])
}

// admit returns an error if n more bytes are not allowed. It adds the START before the first byte.
func (s *Sender) admit(n int64) error {
	if s.err != nil {
		return s.err
	}
	if err := s.c.usable(); err != nil {
		s.err = err
		return err
	}
	if s.ended || s.length >= 0 && n > s.length-s.sent || n > maxLength-s.sent {
		return s.fail(closeUnfinished, fault.New(fault.Internal, "more bytes than were announced"))
	}
	s.ready()
	if !s.begun {
		s.begun = true
		h := header{kind: start, transfer: s.c.transfer, length: s.length}
		s.pending = h.append(s.pending)
	}
	return nil
}

// begin makes room for n more bytes in a DATA.
func (s *Sender) begin(n int64) error {
	if err := s.admit(n); err != nil {
		return err
	}
	if s.frame >= 0 {
		return nil
	}
	if len(s.pending)+headerSize > bufferSize {
		if err := s.flush(0); err != nil {
			return err
		}
	}
	s.frame = len(s.pending)
	s.pending = s.pending[:s.frame+headerSize] // flush writes it
	return nil
}

// closeFrame ends the open DATA with the pending bytes, and the n bytes that the caller sends next.
func (s *Sender) closeFrame(n int64) {
	if s.frame < 0 {
		return
	}
	h := header{kind: data, transfer: s.c.transfer, length: int64(len(s.pending)-s.frame-headerSize) + n}
	h.append(s.pending[:s.frame])
	s.frame = -1
}

// flush sends the pending bytes. The open DATA continues with n bytes that the caller sends next.
func (s *Sender) flush(n int64) error {
	s.closeFrame(n)
	if len(s.pending) == 0 {
		return nil
	}
	err := s.c.line.write(s.pending, s.c.line.limits.stall)
	s.pending = s.pending[:0]
	if err != nil {
		return s.broken(err)
	}
	s.c.line.limits.metrics.countSent(0, s.buffered)
	s.buffered = 0
	return nil
}

// Flush sends the buffered bytes.
func (s *Sender) Flush() error {
	if s.err != nil || s.buffer == nil {
		return s.err
	}
	if err := s.c.usable(); err != nil {
		s.err = err
		return err
	}
	return s.flush(0)
}

// End ends our direction, which is complete if status is nil. Otherwise it reports the error to the peer, and the
// channel is not reused. A complete direction of fewer bytes than announced is an error.
func (s *Sender) End(status error) error {
	if s.err != nil {
		return s.err
	}
	if err := s.c.usable(); err != nil {
		s.err = err
		return err
	}
	if s.ended {
		return nil
	}
	if s.length >= 0 && s.sent < s.length && status == nil {
		return s.fail(closeUnfinished, fault.New(fault.Internal, "the transfer is shorter than announced"))
	}
	s.ended = true
	s.ready()
	s.closeFrame(0)
	if len(s.pending)+headerSize+maxMessage > bufferSize {
		if err := s.flush(0); err != nil {
			return err
		}
	}
	s.pending = appendStatus(s.pending, end, s.c.transfer, s.sent, status)
	if err := s.flush(0); err != nil {
		return err
	}
	to := ended
	if status != nil {
		to = failed
	}
	s.c.set(&s.c.sending, to)
	return nil
}

// ready makes sure that there is a buffer.
func (s *Sender) ready() {
	if s.buffer == nil {
		s.buffer = s.c.line.limits.buffers.get()
		s.pending, s.frame = s.buffer[:0], -1
	}
}

// fail closes the channel because of err.
func (s *Sender) fail(why reason, err error) error {
	_ = s.c.broken(why, err)
	s.err = err
	return err
}

// broken closes the channel after an error of a copy.
func (s *Sender) broken(err error) error {
	why := closeBroken
	if errors.Is(err, os.ErrDeadlineExceeded) {
		why = closeStall
	}
	s.err = s.c.broken(why, err)
	return s.err
}

// drop returns the buffer for reuse, unless it may still be in use.
func (s *Sender) drop() {
	if s.buffer != nil && s.ended && s.err == nil {
		s.c.line.limits.buffers.put(s.buffer)
		s.buffer, s.pending = nil, nil
	}
}
