package loadgen

import (
	"bytes"
	"errors"
	"io"
	"strings"
)

// Exchange is one connection's running request and what has come of its answer.
type Exchange struct {
	buf  []byte
	n    int
	Head Head
	at   int // length of the head, 0 until it is complete
	Body []byte

	chunks []byte // holds the body where it came chunked
}

// MaxSmall bounds a small answer.
const MaxSmall = 256 << 20

// begin gets ready for the next answer.
func (x *Exchange) begin() { x.n, x.at = 0, 0 }

// space is where to read on.
func (x *Exchange) space() []byte {
	if x.n == len(x.buf) {
		grown := make([]byte, max(2*len(x.buf), 16<<10))
		copy(grown, x.buf)
		x.buf = grown
	}
	return x.buf[x.n:]
}

// took says that n bytes were read into space. It is done when the answer is complete; then body holds it until begin.
func (x *Exchange) took(n int) (done bool, err error) {
	x.n += n
	if x.at == 0 {
		for {
			h, at, err := parseHead(x.buf[:x.n])
			if err != nil {
				return false, err
			}
			if at == 0 {
				if x.n > ConnBuffer {
					return false, errors.New("response head too long")
				}
				return false, nil
			}
			if h.Status < 200 {
				x.n = copy(x.buf, x.buf[at:x.n])
				continue
			}
			x.Head, x.at = h, at
			break
		}
	}
	rest := x.buf[x.at:x.n]
	switch {
	case x.Head.chunked:
		if !bytes.HasSuffix(rest, []byte("0\r\n\r\n")) {
			return false, x.bounded()
		}
		return x.dechunk(rest)
	case x.Head.Length < 0:
		return false, x.bounded() // until the connection ends
	case int64(len(rest)) > x.Head.Length:
		return false, errors.New("bytes after the end of the response")
	case int64(len(rest)) == x.Head.Length:
		x.Body = rest
		return true, nil
	}
	return false, x.bounded()
}

func (x *Exchange) bounded() error {
	if x.n > MaxSmall {
		return errors.New("response too long")
	}
	return nil
}

// ended says that the connection has ended.
func (x *Exchange) ended() error {
	if x.at > 0 && !x.Head.chunked && x.Head.Length < 0 {
		x.Body = x.buf[x.at:x.n]
		return nil
	}
	return io.ErrUnexpectedEOF
}

// dechunk reads a chunked body that seems complete.
func (x *Exchange) dechunk(b []byte) (bool, error) {
	x.chunks = x.chunks[:0]
	for {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			return false, x.bounded()
		}
		n, err := parseChunkSize(b[:i])
		if err != nil {
			return false, err
		}
		b = b[i+1:]
		if n == 0 {
			x.Body = x.chunks
			return true, nil
		}
		if int64(len(b)) < n+2 {
			return false, x.bounded() // the data only looked like the end
		}
		if b[n] != '\r' || b[n+1] != '\n' {
			return false, errors.New("bad chunked body: a chunk is longer than it said")
		}
		x.chunks = append(x.chunks, b[:n]...)
		b = b[n+2:]
	}
}

// CheckStatus is a Sender's Check that wants status 200.
func CheckStatus(x *Exchange) error {
	if x.Head.Status != 200 {
		return &HTTPError{Status: x.Head.Status, Text: Clean(x.Body[:min(len(x.Body), 200)])}
	}
	return nil
}

// Header returns the value of a header of the answer, or "".
func (x *Exchange) Header(name string) string {
	for line := range bytes.Lines(x.buf[:x.at]) {
		key, value, ok := bytes.Cut(line, []byte{':'})
		if ok && strings.EqualFold(string(key), name) {
			return string(bytes.TrimSpace(value))
		}
	}
	return ""
}
