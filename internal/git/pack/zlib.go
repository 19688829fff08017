package pack

import (
	"bytes"
	"errors"
	"io"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zlib"
)

// errInput means that a zlib stream in memory ends early.
var errInput = errors.New("the zlib stream ends early")

// inflater inflates zlib streams that are in memory as a whole. It is used by one goroutine.
type inflater struct {
	src   bytes.Reader
	flate io.ReadCloser // of src; nil before the first stream
}

// The parts of a zlib stream around the compressed data, in bytes (RFC 1950).
const (
	zlibHeader  = 2
	zlibTrailer = 4 // Adler-32
)

// inflate inflates the stream at the beginning of src, which must hold exactly len(dst) bytes. It returns the length of
// the stream. It does not compare the Adler-32: the caller compares a CRC-32 of the stream, or a hash of the object.
// The error is errInput if src is too short.
func (z *inflater) inflate(dst, src []byte) (length int, err error) {
	if len(src) < zlibHeader {
		return 0, errInput
	}
	const deflated, dictionary = 8, 0x20
	if src[0]&0x8f != deflated || src[1]&dictionary != 0 || (int(src[0])<<8|int(src[1]))%31 != 0 {
		return 0, zlib.ErrHeader
	}
	z.src.Reset(src[zlibHeader:])
	if z.flate == nil {
		z.flate = flate.NewReader(&z.src)
	} else if err := z.flate.(flate.Resetter).Reset(&z.src, nil); err != nil {
		return 0, err
	}
	_, err = io.ReadFull(z.flate, dst)
	if err == nil {
		var b [1]byte
		err = endStream(z.flate, b[:])
	}
	switch {
	case err == nil && z.src.Len() < zlibTrailer:
		return 0, errInput
	case err == nil:
		return len(src) - z.src.Len() + zlibTrailer, nil
	case z.src.Len() == 0 && errors.Is(err, io.ErrUnexpectedEOF):
		return 0, errInput
	case errors.Is(err, io.ErrUnexpectedEOF), err == io.EOF:
		return 0, errShort
	}
	return 0, err
}
