package bulk

import (
	"errors"
	"io"
	"os"
	"sync/atomic"
)

// Section is a part of a file to be sent to a connection. It reads at its own offset, so that many sections can share
// one open file. Only Gone is safe for concurrent use.
type Section struct {
	File   *os.File
	Offset int64           // of the next byte
	N      int64           // remaining bytes
	Done   <-chan struct{} // closed when the remaining bytes are not needed; may be nil

	kernel  int64
	gone    atomic.Int64
	counter Counter
	err     error
}

// ErrDone is the error of a section whose remaining bytes are not needed.
var ErrDone = errors.New("the rest of the file is not needed")

// Read copies through user space.
func (s *Section) Read(p []byte) (int, error) {
	if s.N <= 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > s.N {
		p = p[:s.N]
	}
	if s.done() {
		return 0, ErrDone
	}
	n, err := s.File.ReadAt(p, s.Offset)
	s.advance(int64(n))
	if n > 0 {
		return n, nil
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF // the file is shorter than the section
	}
	s.err = err
	return 0, err
}

// Err returns the error of reading the file. If a copy failed and Err is nil, the connection failed.
func (s *Section) Err() error { return s.err }

// Gone returns the number of bytes that were sent. Safe for concurrent use.
func (s *Section) Gone() int64 { return s.gone.Load() }

// Elsewhere counts n more bytes that the kernel has sent in the process that received the file.
func (s *Section) Elsewhere(n int64) {
	s.kernel += n
	s.advance(n)
}

func (s *Section) done() bool {
	select {
	case <-s.Done:
		return true
	default:
		return false
	}
}

func (s *Section) advance(n int64) {
	s.Offset += n
	s.N -= n
	s.gone.Add(n)
	if s.counter != nil {
		s.counter.Sent(n)
	}
}

// CountTo sets the counter that is called while bytes are sent.
func (s *Section) CountTo(c Counter) { s.counter = c }

// KernelBytes returns the number of bytes that did not pass through user space.
func (s *Section) KernelBytes() int64 { return s.kernel }
