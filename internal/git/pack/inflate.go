package pack

import (
	"errors"
	"hash"
	"hash/adler32"
	"io"
	"strconv"
	"sync"

	"github.com/packhorse-git/packhorse/internal/git"
)

const (
	firstRead = 4 << 10 // most commits and trees are there after one pread of this size
	blockSize = 32 << 10

	// inflateRatio is more than deflate can reach (1032:1); a header that claims more for the bytes there are lies.
	inflateRatio = 1040
)

var errZlib = errors.New("the zlib stream is damaged")

// window reads a part of a file forwards through a bounded buffer.
type window struct {
	from   io.ReaderAt
	off    int64 // of the next pread
	end    int64
	pos, n int
	buf    [blockSize]byte
}

func (w *window) reset(from io.ReaderAt, off, end int64) {
	w.from, w.off, w.end, w.pos, w.n = from, off, end, 0, 0
}

// fill reads the next block: a small one first.
func (w *window) fill() error {
	size := int64(firstRead)
	if w.n > 0 {
		size = blockSize
	}
	size = min(size, w.end-w.off)
	if size <= 0 {
		return io.ErrUnexpectedEOF
	}
	n, err := w.from.ReadAt(w.buf[:size], w.off)
	if n == 0 {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	w.pos, w.n, w.off = 0, n, w.off+int64(n)
	return nil
}

func (w *window) ReadByte() (byte, error) {
	if w.pos == w.n {
		if err := w.fill(); err != nil {
			return 0, err
		}
	}
	c := w.buf[w.pos]
	w.pos++
	return c, nil
}

func (w *window) Read(p []byte) (int, error) {
	if w.pos == w.n {
		if err := w.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, w.buf[w.pos:w.n])
	w.pos += n
	return n, nil
}

// left is how many bytes there are at most from the reader's place on.
func (w *window) left() int64 { return w.end - w.off + int64(w.n-w.pos) }

// offset is the reader's place in the file.
func (w *window) offset() int64 { return w.off - int64(w.n-w.pos) }

// scratch is what one read needs and the next can use again.
type scratch struct {
	in      window
	deflate inflater
	hash    hash.Hash
	format  git.ObjectFormat
	chain   []link
	held    []*openPack
	spare   [3][]byte
	small   [80]byte
}

// maxSpare bounds the buffers that a scratch keeps between reads.
const maxSpare = 1 << 20

// scratches are for all stores: of thousands that are open few read at the same time.
var scratches = sync.Pool{New: func() any { return new(scratch) }}

func takeScratch(format git.ObjectFormat) *scratch {
	sc := scratches.Get().(*scratch)
	if sc.format != format || sc.hash == nil {
		sc.format, sc.hash = format, format.New()
	}
	return sc
}

func (sc *scratch) giveBack() {
	sc.in.from, sc.deflate.out = nil, nil
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

// buffer gives spare buffer i with n bytes; what it held is lost.
func (sc *scratch) buffer(i int, n int64) []byte {
	if int64(cap(sc.spare[i])) < n {
		sc.spare[i] = make([]byte, n)
	}
	return sc.spare[i][:n]
}

// startZlib reads the header of a zlib stream (RFC 1950) at sc.in, to be inflated into dst.
func (sc *scratch) startZlib(dst []byte) error {
	sc.deflate.reset(&sc.in, dst)
	v, err := sc.deflate.take(16)
	if err != nil {
		return err
	}
	cmf, flg := v&0xff, v>>8
	if cmf&0xf != 8 || cmf>>4 > 7 || (cmf<<8|flg)%31 != 0 || flg&0x20 != 0 {
		return errZlib
	}
	return nil
}

// inflate reads the zlib stream at sc.in, which has to hold exactly len(dst) bytes, and checks its checksum.
func (sc *scratch) inflate(dst []byte) error {
	if err := sc.startZlib(dst); err != nil {
		return err
	}
	if err := sc.deflate.run(); err != nil {
		return err
	}
	if sc.deflate.n != len(dst) {
		return errors.New("the zlib stream is shorter than its object")
	}
	sum, err := sc.deflate.trailer()
	if err == nil && sum != adler32.Checksum(dst) {
		err = errZlib
	}
	return err
}

// peek inflates at most len(dst) bytes of the stream at sc.in and does not look further. It says how many there are.
func (sc *scratch) peek(dst []byte) (int, error) {
	err := sc.startZlib(dst)
	if err == nil {
		err = sc.deflate.run()
	}
	if err == errFull {
		err = nil
	}
	return sc.deflate.n, err
}

// verify tells whether data is the object that id names.
func (sc *scratch) verify(id *git.ObjectID, typ git.ObjectType, data []byte) bool {
	header := append(sc.small[:0], typ.String()...)
	header = append(header, ' ')
	header = strconv.AppendInt(header, int64(len(data)), 10)
	header = append(header, 0)
	sc.hash.Reset()
	sc.hash.Write(header)
	sc.hash.Write(data)
	return string(sc.hash.Sum(sc.small[:0])) == string(id.Raw())
}
