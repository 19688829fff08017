// Package pktline reads and writes Git's pkt-line framing and the side-band inside it.
//
// A pkt-line is four hexadecimal digits with its length, including themselves, and then the payload
// (gitprotocol-common(5)). Lengths 0 to 2 are the special packets flush, delim and response-end. 3 is not allowed, and
// 65520 is the maximum. In a side-band packet the first payload byte is the band (gitprotocol-pack(5), "packfile
// data").
//
// The codec knows no policy: limits on how many packets a request may have are the reader's business.
package pktline

import (
	"errors"
	"fmt"
	"io"
)

const (
	// MaxLine is the greatest length of a pkt-line, its four digits included.
	MaxLine = 65520
	// MaxPayload is the greatest payload of a pkt-line.
	MaxPayload = MaxLine - 4
	// MaxBandData is the greatest payload of a side-band-64k packet, its band byte excluded.
	MaxBandData = MaxPayload - 1
)

// Band is the channel of a side-band packet.
type Band byte

const (
	BandData     Band = 1
	BandProgress Band = 2
	BandError    Band = 3
)

// Type is the type of a packet: data, or one of the special ones.
type Type uint8

const (
	Data Type = iota
	Flush
	Delim
	ResponseEnd
)

func (t Type) String() string {
	return [...]string{"data", "flush", "delim", "response-end"}[t]
}

// ErrSyntax is wrapped by every framing error that the peer is to blame for.
var ErrSyntax = errors.New("bad pkt-line")

// Reader reads pkt-lines, with as few reads and copies as it can: packets are handed out where they lie in its buffer.
// Not safe for concurrent use.
type Reader struct {
	r       io.Reader
	buf     []byte
	at, end int   // buf[at:end] was read and not returned yet
	err     error // of r; comes after that
	dropped bool  // the beginning of the stream is not in buf any more
}

// firstBuffer is the buffer's length for requests of the common kind; it grows to that of the longest packet, or to
// what Whole asks for.
const firstBuffer = 16 << 10

// NewReader reads from r. It may read ahead of the packet it returns.
func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Reset makes the Reader read from another stream, with the buffer that it has.
func (r *Reader) Reset(from io.Reader) { *r = Reader{r: from, buf: r.buf} }

// Size is the length of the buffer in bytes.
func (r *Reader) Size() int { return len(r.buf) }

// fill makes n bytes available, if the stream has as many.
func (r *Reader) fill(n int) {
	if r.at > 0 && r.at+n > len(r.buf) {
		r.end = copy(r.buf, r.buf[r.at:r.end])
		r.at, r.dropped = 0, true
	}
	if n > len(r.buf) {
		buf := make([]byte, max(n, firstBuffer, min(2*len(r.buf), MaxLine)))
		r.end = copy(buf, r.buf[r.at:r.end])
		r.buf, r.at = buf, 0
	}
	for empty := 0; r.end-r.at < n && r.err == nil; {
		var m int
		m, r.err = r.r.Read(r.buf[r.end:])
		r.end += m
		if empty++; m > 0 {
			empty = 0
		} else if empty > 100 && r.err == nil {
			r.err = io.ErrNoProgress
		}
	}
}

// Rewind makes the Reader return everything that it has read once more. It reports false, and does nothing, if its
// buffer does not have the beginning any more, as after requests that are longer than Size.
func (r *Reader) Rewind() bool {
	if !r.dropped {
		r.at = 0
	}
	return !r.dropped
}

// Whole reads to the end of the stream and returns all unread bytes, without taking them from the Reader. ok is false
// if they are limit bytes or more, or the stream is broken. The result is valid until the next call.
func (r *Reader) Whole(limit int) (rest []byte, ok bool) {
	for n := 1; r.err == nil; n = r.end - r.at + 1 {
		if n > limit {
			return nil, false
		}
		if n > len(r.buf) {
			n = min(max(2*len(r.buf), firstBuffer), limit)
		}
		r.fill(n)
	}
	return r.buf[r.at:r.end], r.err == io.EOF && r.end-r.at < limit
}

// Next returns the next packet. The payload is valid until the next call. At the end of the stream between packets the
// error is io.EOF; within a packet it is io.ErrUnexpectedEOF.
func (r *Reader) Next() (Type, []byte, error) {
	if r.fill(4); r.end-r.at < 4 {
		return 0, nil, r.short()
	}
	n, err := ParseLength(r.buf[r.at:])
	if err != nil {
		return 0, nil, err
	}
	if n < 4 {
		r.at += 4
		return [...]Type{Flush, Delim, ResponseEnd}[n], nil, nil
	}
	if r.fill(n); r.end-r.at < n {
		return 0, nil, r.short()
	}
	p := r.buf[r.at+4 : r.at+n]
	r.at += n
	return Data, p, nil
}

// short is the error of a stream that ends where more was expected.
func (r *Reader) short() error {
	if r.err == io.EOF && r.end > r.at {
		return io.ErrUnexpectedEOF
	}
	return r.err
}

// Line is Next for text packets: it drops one final newline.
func (r *Reader) Line() (Type, []byte, error) {
	t, p, err := r.Next()
	if n := len(p); n > 0 && p[n-1] == '\n' {
		p = p[:n-1]
	}
	return t, p, err
}

// ParseLength reads the four digits of a packet: 0 to 2 for the special packets, else the packet's whole length.
func ParseLength(head []byte) (int, error) {
	if len(head) < 4 {
		return 0, fmt.Errorf("%w: length %q", ErrSyntax, head)
	}
	n := 0
	for _, c := range head[:4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, fmt.Errorf("%w: length %q", ErrSyntax, head[:4])
		}
		n = n<<4 | int(c)
	}
	if n == 3 || n > MaxLine {
		return 0, fmt.Errorf("%w: length %d", ErrSyntax, n)
	}
	return n, nil
}

const digits = "0123456789abcdef"

// PutLength writes a packet's whole length as four digits into b.
func PutLength(b []byte, n int) {
	_ = b[3]
	b[0], b[1], b[2], b[3] = digits[n>>12&15], digits[n>>8&15], digits[n>>4&15], digits[n&15]
}

// AppendFlush appends a flush packet.
func AppendFlush(b []byte) []byte { return append(b, "0000"...) }

// AppendDelim appends a delimiter packet.
func AppendDelim(b []byte) []byte { return append(b, "0001"...) }

// AppendResponseEnd appends a response-end packet.
func AppendResponseEnd(b []byte) []byte { return append(b, "0002"...) }

// Append appends one data packet. It panics if the payload is longer than MaxPayload.
func Append[T string | []byte](b []byte, payload T) []byte {
	b = appendLength(b, len(payload)+4)
	return append(b, payload...)
}

// AppendLine appends one data packet with a newline at its end.
func AppendLine[T string | []byte](b []byte, payload T) []byte {
	b = appendLength(b, len(payload)+5)
	return append(append(b, payload...), '\n')
}

// AppendBand appends data as side-band packets, as many as it needs.
func AppendBand[T string | []byte](b []byte, band Band, data T) []byte {
	for len(data) > 0 {
		n := min(len(data), MaxBandData)
		b = appendLength(b, n+5)
		b = append(append(b, byte(band)), data[:n]...)
		data = data[n:]
	}
	return b
}

func appendLength(b []byte, n int) []byte {
	if n > MaxLine {
		panic(fmt.Sprintf("pktline: a packet of %d bytes", n))
	}
	b = append(b, 0, 0, 0, 0)
	PutLength(b[len(b)-4:], n)
	return b
}

// Start reserves a packet's length at the end of b; Finish fills it in once the payload has been appended.
func Start(b []byte) ([]byte, int) { return append(b, 0, 0, 0, 0), len(b) }

// Finish completes the packet that began at offset start.
func Finish(b []byte, start int) []byte {
	n := len(b) - start
	if n > MaxLine {
		panic(fmt.Sprintf("pktline: a packet of %d bytes", n))
	}
	PutLength(b[start:], n)
	return b
}
