package pack

import (
	"bytes"
	"errors"
	"io"

	"github.com/klauspost/compress/zlib"
)

// errInput means that a zlib stream in memory ends early.
var errInput = errors.New("the zlib stream ends early")

// inflater inflates zlib streams that are in memory as a whole. It is used by one goroutine.
type inflater struct {
	src  bytes.Reader
	zlib io.ReadCloser // of src; nil before the first stream
}

// inflate inflates the stream at the beginning of src, which must hold exactly len(dst) bytes, and checks its checksum.
// It returns the length of the stream. The error is errInput if src is too short.
func (z *inflater) inflate(dst, src []byte) (length int, err error) {
	z.src.Reset(src)
	if z.zlib == nil {
		z.zlib, err = zlib.NewReader(&z.src)
	} else {
		err = z.zlib.(zlib.Resetter).Reset(&z.src, nil)
	}
	if err == nil {
		_, err = io.ReadFull(z.zlib, dst)
	}
	if err == nil {
		var b [1]byte
		err = endStream(z.zlib, b[:])
	}
	switch {
	case err == nil:
		return len(src) - z.src.Len(), nil
	case z.src.Len() == 0 && errors.Is(err, io.ErrUnexpectedEOF):
		return 0, errInput
	case errors.Is(err, io.ErrUnexpectedEOF), err == io.EOF:
		return 0, errShort
	}
	return 0, err
}
