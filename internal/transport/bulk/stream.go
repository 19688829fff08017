package bulk

import (
	"io"
	"time"
)

// Stream is a number of bytes to be copied from one connection to another. Not safe for concurrent use. Until the copy
// ends, nothing else may read from From.
//
// The Stream fails if From sends nothing within its time limit. After a failure From has to be closed, because the
// number of its bytes that were read is unknown.
type Stream struct {
	From *Conn
	N    int64 // remaining bytes

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

// limit sets the deadline for the next bytes of From.
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

// fail records an error of From.
func (s *Stream) fail(err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	s.err = err
	return err
}

// KernelBytes returns the number of bytes that did not pass through user space.
func (s *Stream) KernelBytes() int64 { return s.kernel }

// Err returns the error of From. If the copy failed and Err is nil, the other connection failed.
func (s *Stream) Err() error { return s.err }
