package pack

import (
	"bufio"
	"errors"
	"hash"
	"io"
	"strconv"
	"sync"

	"github.com/klauspost/compress/zlib"

	"github.com/packhorse-git/packhorse/internal/git"
)

const (
	// readSize is the size of one pread. Most commits and trees are smaller.
	readSize = 4 << 10

	// inflateRatio is more than deflate can reach (1032:1). An entry whose header claims more is damaged.
	inflateRatio = 1040
)

var (
	errLong  = errors.New("the zlib stream is longer than its object")
	errShort = errors.New("the zlib stream is shorter than its object")
)

// section is a part of a file that is read forwards. Its end is an unexpected EOF, because objects end before their
// file.
type section struct {
	file     io.ReaderAt
	off, end int64 // of the next pread, and of the section
}

func (s *section) Read(p []byte) (int, error) {
	n := min(int64(len(p)), s.end-s.off)
	if n <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	read, err := s.file.ReadAt(p[:n], s.off)
	s.off += int64(read)
	switch {
	case read > 0:
		return read, nil
	case err == nil || err == io.EOF:
		err = io.ErrUnexpectedEOF
	}
	return 0, err
}

// scratch holds the buffers of one read. A later read uses them again.
type scratch struct {
	section section
	in      *bufio.Reader // of section
	zlib    io.ReadCloser // of in; nil before the first object
	hash    hash.Hash
	format  git.ObjectFormat
	chain   []link
	held    []*openPack
	spare   [3][]byte
	small   [80]byte
	share   bool // see Store.ReadShared
}

// maxSpare is the maximum size in bytes of a buffer that a scratch keeps between reads.
const maxSpare = 1 << 20

// scratches is shared by all stores, because few of thousands of open stores are read at the same time.
var scratches = sync.Pool{New: func() any {
	sc := new(scratch)
	sc.in = bufio.NewReaderSize(&sc.section, readSize)
	return sc
}}

func takeScratch(format git.ObjectFormat) *scratch {
	sc := scratches.Get().(*scratch)
	if sc.format != format || sc.hash == nil {
		sc.format, sc.hash = format, format.New()
	}
	return sc
}

func (sc *scratch) release() {
	sc.section.file, sc.share = nil, false
	for i := range sc.spare {
		if cap(sc.spare[i]) > maxSpare {
			sc.spare[i] = nil
		}
	}
	if cap(sc.chain) > 1024 {
		sc.chain = nil
	}
	clear(sc.chain[:cap(sc.chain)])
	scratches.Put(sc)
}

// seek makes sc.in read from an offset of a file, up to end.
func (sc *scratch) seek(file io.ReaderAt, off, end int64) {
	sc.section = section{file, off, end}
	sc.in.Reset(&sc.section)
}

// offset is the file offset of the next byte of sc.in.
func (sc *scratch) offset() int64 { return sc.section.off - int64(sc.in.Buffered()) }

// remaining is the number of bytes between the next byte of sc.in and the end of the section.
func (sc *scratch) remaining() int64 { return sc.section.end - sc.offset() }

// buffer returns spare buffer i with n bytes. Its previous content is lost.
func (sc *scratch) buffer(i int, n int64) []byte {
	if int64(cap(sc.spare[i])) < n {
		sc.spare[i] = make([]byte, n)
	}
	return sc.spare[i][:n]
}

// startZlib reads the header of the zlib stream at sc.in.
func (sc *scratch) startZlib() (err error) {
	if sc.zlib == nil {
		sc.zlib, err = zlib.NewReader(sc.in)
		return err
	}
	return sc.zlib.(zlib.Resetter).Reset(sc.in, nil)
}

// inflate reads the zlib stream at sc.in, which must hold exactly len(dst) bytes, and checks its checksum.
func (sc *scratch) inflate(dst []byte) error {
	if err := sc.startZlib(); err != nil {
		return err
	}
	return sc.inflateRest(dst)
}

// inflateRest reads the rest of a started zlib stream, which must hold exactly len(dst) bytes, and checks its checksum.
func (sc *scratch) inflateRest(dst []byte) error {
	for len(dst) > 0 {
		n, err := sc.zlib.Read(dst)
		dst = dst[n:]
		if err == io.EOF && len(dst) > 0 {
			return errShort
		}
		if err != nil && err != io.EOF {
			return err
		}
	}
	return sc.endZlib()
}

// endZlib checks that the zlib stream ends here, and its checksum.
func (sc *scratch) endZlib() error { return endStream(sc.zlib, sc.small[:1]) }

// endStream checks that an inflated stream ends here, and its checksum. It needs room for a byte.
func endStream(zlib io.Reader, room []byte) error {
	for {
		n, err := zlib.Read(room)
		switch {
		case n > 0:
			return errLong
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// peek starts the zlib stream at sc.in and reads up to len(dst) bytes of it. It returns how many there are.
func (sc *scratch) peek(dst []byte) (n int, err error) {
	if err := sc.startZlib(); err != nil {
		return 0, err
	}
	for n < len(dst) && err == nil {
		var read int
		read, err = sc.zlib.Read(dst[n:])
		n += read
	}
	if err == io.EOF {
		err = nil
	}
	return n, err
}

// startHash begins the hash of an object with its header.
func (sc *scratch) startHash(typ git.ObjectType, size int64) {
	header := append(sc.small[:0], typ.String()...)
	header = append(header, ' ')
	header = strconv.AppendInt(header, size, 10)
	sc.hash.Reset()
	sc.hash.Write(append(header, 0))
}

// verify reports whether data is the object that id names.
func (sc *scratch) verify(id *git.ObjectID, typ git.ObjectType, data []byte) bool {
	sc.startHash(typ, int64(len(data)))
	sc.hash.Write(data)
	return string(sc.hash.Sum(sc.small[:0])) == string(id.Raw())
}
