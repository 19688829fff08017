package bulk

import (
	"io"
	"time"
)

// Stream is bytes on their way from one connection to another. Not safe for concurrent use; nothing else may read from
// From meanwhile.
//
// If From sends nothing for as long as its time limit while bytes are due, the Stream fails. After a failure From has
// to be closed: the number of its bytes that were read is unknown.
type Stream struct {
	From *Conn
	N    int64 // bytes left to take

	kernel  int64
	counter Counter
	limited bool // the Stream has set a deadline on From
	err     error
}

// Read copies through user space.
func (s *Stream) Read(p []byte) (int, error) {
	if s.N <= 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > s.N {
		p = p[:s.N]
	}
	if err := s.limit(); err != nil {
		return 0, s.fail(err)
	}
	n, err := s.From.Read(p)
	s.N -= int64(n)
	s.count(int64(n))
	if s.N == 0 {
		s.unlimit()
	}
	if n > 0 || err == nil {
		return n, nil
	}
	s.unlimit()
	return 0, s.fail(err)
}

// CountTo sets the counter that is called while bytes are sent.
func (s *Stream) CountTo(c Counter) { s.counter = c }

func (s *Stream) count(n int64) {
	if s.counter != nil {
		s.counter.Sent(n)
	}
}

// limit gives From until its time limit to send something.
func (s *Stream) limit() error {
	if s.From.stall <= 0 {
		return nil
	}
	s.limited = true
	return s.From.SetReadDeadline(time.Now().Add(s.From.stall))
}

// unlimit removes the deadline that limit set. Other reads of From have no limit, or set another one.
func (s *Stream) unlimit() {
	if s.limited {
		s.limited = false
		_ = s.From.SetReadDeadline(time.Time{})
	}
}

// fail notes that it was From that failed.
func (s *Stream) fail(err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	s.err = err
	return err
}

// KernelBytes is how much of the stream the kernel has moved without passing through user space.
func (s *Stream) KernelBytes() int64 { return s.kernel }

// Err is what From failed with; nil says that if the copy failed, it was for the other side.
func (s *Stream) Err() error { return s.err }
