package receivepack

import (
	"bytes"
	"compress/flate"
	"io"
	"sync/atomic"

	"github.com/packhorse-git/packhorse/internal/lfs"
)

// pointerSearch reads a pack, and calls found once before it returns a byte of what may be the first pointer file of
// Git LFS. So a push without pointer files needs no hook of Git. An error of found is returned.
//
// It does not parse the pack. A new object ID is in the pack as 64 hexadecimal digits, in the short zlib stream of a
// blob or of a delta. So each place that could begin a stream is inflated for the size of a pointer file. The search
// finds too much, and then checkLFS decides. It finds too little if a delta copies the object ID from its base, which
// the push or the repository has, and in packs that were made to evade it.
type pointerSearch struct {
	body  io.Reader
	found func() error

	isFound atomic.Bool
	streams int    // places that were inflated
	tail    []byte // the last bytes that were searched: a stream may continue in the next ones
	zlib    io.ReadCloser
	source  bytes.Reader
	text    [lfs.MaxPointer]byte
}

const (
	// streamBytes is more than a pointer file has when it is compressed: zlib adds a few bytes to random text.
	streamBytes = lfs.MaxPointer + 128
	// minDigits is the minimum length of the digits. A delta may have an object ID in two parts.
	minDigits = 32
	// maxStreams is the maximum number of places that are inflated. After them the search finds something: they cost time.
	maxStreams = 1 << 20
)

func (s *pointerSearch) Read(b []byte) (int, error) {
	n, err := s.body.Read(b)
	if s.isFound.Load() {
		return n, err
	}
	s.tail = append(s.tail, b[:n]...)
	if s.mayHavePointer(s.tail) {
		s.isFound.Store(true)
		if err := s.found(); err != nil {
			return 0, err
		}
	}
	if drop := len(s.tail) - streamBytes; drop > 0 {
		s.tail = append(s.tail[:0], s.tail[drop:]...)
	}
	return n, err
}

// mayHavePointer reports whether a part of a pack has the beginning of a pointer file.
func (s *pointerSearch) mayHavePointer(part []byte) bool {
	for {
		at := bytes.IndexByte(part, 0x78) // deflate with the usual window (RFC 1950, CMF)
		if at < 0 || at+2 > len(part) {
			return false
		}
		if part = part[at+1:]; (0x78<<8+int(part[0]))%31 == 0 && part[0]&0x20 == 0 && s.isPointer(part[1:]) {
			return true
		}
	}
}

// isPointer reports whether a deflate stream may be a pointer file.
func (s *pointerSearch) isPointer(stream []byte) bool {
	if s.streams++; s.streams > maxStreams {
		return true
	}
	s.source.Reset(stream[:min(len(stream), streamBytes)])
	if s.zlib == nil {
		s.zlib = flate.NewReader(&s.source)
	} else if err := s.zlib.(flate.Resetter).Reset(&s.source, nil); err != nil {
		return false
	}
	n, _ := io.ReadFull(s.zlib, s.text[:]) // an error is the end of the text
	text := s.text[:n]
	if n == lfs.MaxPointer || // a longer file; Git makes no delta that is longer than the file
		bytes.HasPrefix(text, []byte("tree ")) || bytes.HasPrefix(text, []byte("object ")) { // commits and tags
		return false
	}
	digits := 0
	for _, c := range text {
		if digits++; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			digits = 0
		}
		if digits == minDigits {
			return true
		}
	}
	return false
}
