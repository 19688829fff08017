package loadgen

import (
	"bytes"
	"errors"
	"io"
	"strings"
)

// Exchange is the current request of a connection, with the part of its response that has arrived.
type Exchange struct {
	buf  []byte
	n    int
	Head Head
	at   int // length of the head, 0 until it is complete
	Body []byte

	chunks []byte // the body of a chunked response
}

// MaxSmall limits the size of a response in bytes.
const MaxSmall = 256 << 20

// begin prepares for the next response.
func (x *Exchange) begin() { x.n, x.at = 0, 0 }

// space returns the buffer for the next read.
func (x *Exchange) space() []byte {
	if x.n == len(x.buf) {
		grown := make([]byte, max(2*len(x.buf), 16<<10))
		copy(grown, x.buf)
		x.buf = grown
	}
	return x.buf[x.n:]
}

// took accounts for n bytes that were read into space. After the last byte of a response it returns true, and Body is
// valid until begin.
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

// ended accounts for the end of the connection.
func (x *Exchange) ended() error {
	if x.at > 0 && !x.Head.chunked && x.Head.Length < 0 {
		x.Body = x.buf[x.at:x.n]
		return nil
	}
	return io.ErrUnexpectedEOF
}

// dechunk decodes a chunked body that may be complete.
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
			return false, x.bounded() // these bytes are data, and not the end of the body
		}
		if b[n] != '\r' || b[n+1] != '\n' {
			return false, errors.New("bad chunked body: a chunk is longer than its size")
		}
		x.chunks = append(x.chunks, b[:n]...)
		b = b[n+2:]
	}
}

// CheckStatus is a Check for Sender that requires status 200.
func CheckStatus(x *Exchange) error {
	if x.Head.Status != 200 {
		return &HTTPError{Status: x.Head.Status, Text: Clean(x.Body[:min(len(x.Body), 200)])}
	}
	return nil
}

// Header returns the value of a header of the response, or "".
func (x *Exchange) Header(name string) string {
	for line := range bytes.Lines(x.buf[:x.at]) {
		key, value, ok := bytes.Cut(line, []byte{':'})
		if ok && strings.EqualFold(string(key), name) {
			return string(bytes.TrimSpace(value))
		}
	}
	return ""
}
