package bulk

import (
	"io"
	"os"
)

// Section is a part of a file on its way to a connection. It reads at an offset of its own, so that many sections can share
// one open file. Not safe for concurrent use.
type Section struct {
	File   *os.File
	Offset int64 // where the next byte is
	N      int64 // bytes left

	kernel  int64
	counter Counter
}

// Read copies through user space.
func (s *Section) Read(p []byte) (int, error) {
	if s.N <= 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > s.N {
		p = p[:s.N]
	}
	n, err := s.File.ReadAt(p, s.Offset)
	s.advance(int64(n))
	if n > 0 {
		return n, nil
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF // the file is shorter than the section
	}
	return 0, err
}

func (s *Section) advance(n int64) {
	s.Offset += n
	s.N -= n
	if s.counter != nil {
		s.counter.Sent(n)
	}
}

// CountTo has a counter told of the bytes as they go.
func (s *Section) CountTo(c Counter) { s.counter = c }

// KernelBytes is how much of the section the kernel has copied without passing through user space.
func (s *Section) KernelBytes() int64 { return s.kernel }
