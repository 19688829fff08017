package loadgen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"
)

const (
	// ConnBuffer is the size of the buffer for a response's head and the parts of its body that are parsed.
	ConnBuffer = 64 << 10
	// discardStep limits one discarding receive, so that one connection does not occupy a CPU for long.
	discardStep = 1 << 20
	// FrameRead limits a read of framing bytes between bulk data that is dropped.
	FrameRead = 256
)

// Conn is one HTTP/1.1 connection of a bulk load. It buffers parsed bytes and drops the others. One goroutine uses it;
// other goroutines may read received and call Abort.
type Conn struct {
	net.Conn
	drop     dropper
	buf      []byte
	r, w     int           // buf[r:w] is read and not consumed
	received *atomic.Int64 // bytes of this connection and its owner's earlier ones, heads included
	pace     *pace         // nil: no limit
}

func NewConn(c net.Conn, received *atomic.Int64) *Conn {
	return &Conn{Conn: c, drop: newDropper(c), buf: make([]byte, ConnBuffer), received: received}
}

// Abort makes every running and later operation fail soon. Safe to call from another goroutine.
func (c *Conn) Abort() { c.SetDeadline(time.Unix(1, 0)) } //nolint:errcheck // a closed connection is aborted already

// wait blocks until up to n bytes may be read and returns how many.
func (c *Conn) wait(n int64) int64 {
	if c.pace == nil {
		return n
	}
	for {
		now := time.Now()
		got, delay := c.pace.take(n, now)
		if got > 0 {
			return got
		}
		time.Sleep(delay)
	}
}

func (c *Conn) account(n int64) {
	c.received.Add(n)
	if c.pace != nil {
		c.pace.spend(n)
	}
}

// fill reads once, at most limit bytes, and appends them to the buffer. The error is io.EOF only if no byte was read.
func (c *Conn) fill(limit int) error {
	if c.r == c.w {
		c.r, c.w = 0, 0
	} else if c.w == len(c.buf) {
		if c.r == 0 {
			return errors.New("response head too long")
		}
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	}
	room := min(limit, len(c.buf)-c.w)
	n, err := c.Conn.Read(c.buf[c.w : c.w+int(c.wait(int64(room)))])
	c.w += n
	c.account(int64(n))
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// discard drops up to n bytes of the stream, at least one, and returns how many.
func (c *Conn) discard(n int64) (int64, error) {
	if have := int64(c.w - c.r); have > 0 {
		n = min(n, have)
		c.r += int(n)
		return n, nil
	}
	got, err := c.drop.discard(c.wait(min(n, discardStep)))
	c.account(got)
	if got > 0 {
		return got, nil
	}
	return 0, err
}

// Head contains the parts of a response's status line and headers that the load generators use.
type Head struct {
	Status  int
	Length  int64 // of the body; -1: unknown
	chunked bool
	Close   bool // the connection ends with this response
}

// ReadHead reads up to the body of the next final response.
func (c *Conn) ReadHead() (Head, error) {
	for {
		h, n, err := parseHead(c.buf[c.r:c.w])
		switch {
		case err != nil:
			return h, err
		case n == 0:
			empty := c.r == c.w
			if err := c.fill(len(c.buf)); err != nil {
				if err == io.EOF && !empty {
					err = io.ErrUnexpectedEOF
				}
				return h, err
			}
			continue
		}
		c.r += n
		if h.Status >= 200 {
			return h, nil
		}
	}
}

// parseHead reads an HTTP/1.x response head (RFC 9112, section 2). n is its length, 0 if b does not hold all of it.
func parseHead(b []byte) (h Head, n int, err error) {
	end := bytes.Index(b, []byte("\r\n\r\n"))
	if end < 0 {
		if len(b) >= 5 && !bytes.HasPrefix(b, []byte("HTTP/")) {
			return h, 0, errors.New("not an HTTP response")
		}
		return h, 0, nil
	}
	n = end + 4
	line, rest, _ := bytes.Cut(b[:end], []byte("\r\n"))
	if len(line) < len("HTTP/1.1 200") || !bytes.HasPrefix(line, []byte("HTTP/1.")) || line[8] != ' ' {
		return h, 0, fmt.Errorf("bad status line %.60q", line)
	}
	for _, c := range line[9:12] {
		if c < '0' || c > '9' {
			return h, 0, fmt.Errorf("bad status line %.60q", line)
		}
		h.Status = h.Status*10 + int(c-'0')
	}
	h.Length, h.Close = -1, line[7] == '0'
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		colon := bytes.IndexByte(line, ':')
		if colon < 0 {
			return h, 0, fmt.Errorf("bad header line %.60q", line)
		}
		value := bytes.TrimSpace(line[colon+1:])
		switch colon {
		case len("Content-Length"):
			if !equalFold(line[:colon], "content-length") {
				break
			}
			if h.Length, err = parseDecimal(value); err != nil {
				return h, 0, err
			}
		case len("Transfer-Encoding"):
			if equalFold(line[:colon], "transfer-encoding") {
				h.chunked = equalFold(value, "chunked")
			}
		case len("Connection"):
			if equalFold(line[:colon], "connection") {
				h.Close = equalFold(value, "close") || h.Close && !equalFold(value, "keep-alive")
			}
		}
	}
	switch {
	case h.Status == 204 || h.Status == 304 || h.Status < 200:
		h.Length, h.chunked = 0, false
	case h.chunked:
		h.Length = -1
	case h.Length < 0:
		h.Close = true
	}
	return h, n, nil
}

// equalFold compares ASCII text without regard to case. lower is in lower case.
func equalFold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

func parseDecimal(b []byte) (int64, error) {
	var n int64
	if len(b) == 0 || len(b) > 18 {
		return 0, fmt.Errorf("bad Content-Length %.40q", b)
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("bad Content-Length %.40q", b)
		}
		n = n*10 + int64(c-'0')
	}
	return n, nil
}

// Body reads one response's body through its framing.
type Body struct {
	c       *Conn
	chunked bool
	toEOF   bool  // the end of the connection ends the body
	left    int64 // remaining bytes of the body, or of the current chunk
	begun   bool  // a chunk was read, but not the end of its line
	done    bool
	Size    int64 // bytes read so far
}

func (c *Conn) Body(h Head) *Body {
	return &Body{c: c, chunked: h.chunked, toEOF: !h.chunked && h.Length < 0, left: max(h.Length, 0),
		done: !h.chunked && h.Length == 0}
}

// Next returns the next bytes of the body, which are valid until the next call. It reads at most limit bytes if the
// buffer is empty. The error is io.EOF at the end of the body, and io.ErrUnexpectedEOF if the connection ends before.
func (b *Body) Next(limit int) ([]byte, error) {
	if err := b.prepare(); err != nil {
		return nil, err
	}
	c := b.c
	if c.r == c.w {
		if !b.toEOF {
			limit = int(min(int64(limit), b.left))
		}
		if err := c.fill(limit); err != nil {
			return nil, b.ended(err)
		}
	}
	p := c.buf[c.r:c.w]
	if !b.toEOF && int64(len(p)) > b.left {
		p = p[:b.left]
	}
	c.r += len(p)
	b.took(int64(len(p)))
	return p, nil
}

// Skip drops up to n bytes of the body, at least one, and returns the number of dropped bytes. The errors are those of
// Next.
func (b *Body) Skip(n int64) (int64, error) {
	if err := b.prepare(); err != nil {
		return 0, err
	}
	if !b.toEOF {
		n = min(n, b.left)
	}
	n, err := b.c.discard(n)
	if err != nil {
		return 0, b.ended(err)
	}
	b.took(n)
	return n, nil
}

func (b *Body) took(n int64) {
	b.Size += n
	if !b.toEOF {
		b.left -= n
		b.done = b.left == 0 && !b.chunked
	}
}

func (b *Body) ended(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	if b.toEOF {
		b.done = true
		return io.EOF
	}
	return io.ErrUnexpectedEOF
}

// prepare makes sure that bytes of the body follow. In a chunked body it reads the head of the next chunk (RFC 9112,
// section 7.1), and the trailer at the end.
func (b *Body) prepare() error {
	if b.done {
		return io.EOF
	}
	if !b.chunked || b.left > 0 {
		return nil
	}
	if b.begun {
		line, err := b.line()
		if err != nil {
			return err
		}
		if len(line) != 0 {
			return errors.New("bad chunked body: a chunk is longer than its size")
		}
	}
	line, err := b.line()
	if err != nil {
		return err
	}
	if b.left, err = parseChunkSize(line); err != nil {
		return err
	}
	b.begun = true
	if b.left > 0 {
		return nil
	}
	for {
		line, err := b.line()
		if err != nil {
			return err
		}
		if len(line) == 0 {
			b.done = true
			return io.EOF
		}
	}
}

// line reads a line of framing and returns it without its line end.
func (b *Body) line() ([]byte, error) {
	c := b.c
	for {
		if i := bytes.IndexByte(c.buf[c.r:c.w], '\n'); i >= 0 {
			line := c.buf[c.r : c.r+i]
			c.r += i + 1
			if len(line) > 0 && line[len(line)-1] == '\r' {
				line = line[:len(line)-1]
			}
			return line, nil
		}
		if c.w-c.r > 4096 {
			return nil, errors.New("bad chunked body: line too long")
		}
		if err := c.fill(FrameRead); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}

func parseChunkSize(line []byte) (int64, error) {
	if i := bytes.IndexByte(line, ';'); i >= 0 {
		line = line[:i]
	}
	line = bytes.TrimSpace(line)
	if len(line) == 0 || len(line) > 15 {
		return 0, fmt.Errorf("bad chunk size %.40q", line)
	}
	var n int64
	for _, c := range line {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, fmt.Errorf("bad chunk size %.40q", line)
		}
		n = n<<4 | int64(c)
	}
	return n, nil
}

// DialConn opens a connection for a bulk load.
func (t *Target) DialConn(ctx context.Context, received *atomic.Int64) (*Conn, error) {
	c, err := t.dial(ctx)
	if err != nil {
		return nil, err
	}
	return NewConn(c, received), nil
}
