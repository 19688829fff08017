package loadgen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// ConnBuffer is the size of the buffer for a response's head and the parts of its body that are parsed.
	ConnBuffer = 32 << 10
	// discardStep limits one discarding receive, so that one connection does not occupy a CPU for long.
	discardStep = 1 << 20
	// FrameRead limits a read of framing bytes between bulk data that is dropped.
	FrameRead = 256
	// maxWhole limits the size of a body that is read into memory.
	maxWhole = 256 << 20
)

// Conn is one HTTP/1.1 connection. It buffers parsed bytes and drops the others. One goroutine uses it. It ends with
// the context of DialConn.
type Conn struct {
	net.Conn
	release  func() bool // detaches the connection from the context
	drop     *dropper
	buf      []byte
	r, w     int           // buf[r:w] is read and not consumed
	received *atomic.Int64 // bytes of this connection and its owner's earlier ones, heads included
	pace     *pace         // nil: no limit
	timeout  time.Duration // maximum time without a byte
	armed    time.Time     // when the deadline was set
	body     Body          // of the current response
	whole    []byte        // the buffer of Body.All
}

func NewConn(c net.Conn, received *atomic.Int64, timeout time.Duration) *Conn {
	return &Conn{Conn: c, drop: newDropper(c), buf: make([]byte, ConnBuffer), received: received, timeout: timeout}
}

// DialConn opens a connection. Its operations fail when no byte arrives for the timeout, or when the context ends.
func (t *Target) DialConn(ctx context.Context, received *atomic.Int64, timeout time.Duration) (*Conn, error) {
	c, err := t.dial(ctx)
	if err != nil {
		return nil, err
	}
	conn := NewConn(c, received, timeout)
	conn.release = context.AfterFunc(ctx, func() { c.Close() })
	return conn, nil
}

// Close closes the connection.
func (c *Conn) Close() error {
	if c.release != nil {
		c.release()
	}
	return c.Conn.Close()
}

// Ask sends one request on a connection of its own, and calls read for the response.
func (t *Target) Ask(ctx context.Context, request []byte, timeout time.Duration, read func(b *Body) error) error {
	c, err := t.DialConn(ctx, new(atomic.Int64), timeout)
	if err != nil {
		return err
	}
	defer c.Close()
	b, err := c.Exchange(request)
	if err == nil {
		err = read(b)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// AskAll sends one request on a connection of its own, and returns the body of the response, whose status is 200.
func (t *Target) AskAll(ctx context.Context, request []byte, timeout time.Duration) (body []byte, err error) {
	err = t.Ask(ctx, request, timeout, func(b *Body) (err error) {
		body, err = b.All()
		return err
	})
	return body, err
}

// Exchange sends a request and reads the head of the response. The result is valid until the next call.
func (c *Conn) Exchange(request []byte) (*Body, error) {
	c.arm()
	if _, err := c.Write(request); err != nil {
		return nil, fmt.Errorf("sending the request: %w", c.explain(err))
	}
	return c.Response()
}

// Response reads up to the body of the next final response.
func (c *Conn) Response() (*Body, error) {
	for {
		h, n, err := parseHead(c.buf[c.r:c.w])
		switch {
		case err != nil:
			return nil, err
		case n == 0:
			empty := c.r == c.w
			if err := c.fill(len(c.buf)); err != nil {
				if err == io.EOF && !empty {
					err = io.ErrUnexpectedEOF
				}
				return nil, fmt.Errorf("reading the response's head: %w", err)
			}
			continue
		}
		h.lines = c.buf[c.r : c.r+n]
		c.r += n
		if h.Status >= 200 {
			c.body = Body{Head: h, c: c, toEOF: !h.chunked && h.Length < 0, left: max(h.Length, 0),
				done: !h.chunked && h.Length == 0}
			return &c.body, nil
		}
	}
}

// arm extends the deadline. A call for each read is cheap.
func (c *Conn) arm() {
	if now := time.Now(); c.timeout > 0 && now.Sub(c.armed) > c.timeout/8 {
		c.armed = now
		c.SetDeadline(now.Add(c.timeout)) //nolint:errcheck // the next call fails too
	}
}

func (c *Conn) explain(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("nothing received for %v: %w", c.timeout, err)
	}
	return err
}

// wait blocks until up to n bytes may be read and returns how many.
func (c *Conn) wait(n int64) int64 {
	for c.pace != nil {
		got, delay := c.pace.take(n, time.Now())
		if got > 0 {
			n = got
			break
		}
		time.Sleep(delay)
	}
	c.arm()
	return n
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
	return c.explain(err)
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
	return 0, c.explain(err)
}

// Head contains the parts of a response's status line and headers that the load generators use.
type Head struct {
	Status  int
	Length  int64 // of the body; -1: unknown
	Close   bool  // the connection ends with this response
	chunked bool
	lines   []byte // all of it
}

// Header returns the value of a header, or "". It is valid until the body is read.
func (h *Head) Header(name string) string {
	for line := range bytes.Lines(h.lines) {
		key, value, ok := bytes.Cut(line, []byte{':'})
		if ok && strings.EqualFold(string(key), name) {
			return string(bytes.TrimSpace(value))
		}
	}
	return ""
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
		value := string(bytes.TrimSpace(line[colon+1:]))
		switch name := line[:colon]; {
		case bytes.EqualFold(name, []byte("Content-Length")):
			length, err := strconv.ParseUint(value, 10, 62)
			if err != nil {
				return h, 0, fmt.Errorf("bad Content-Length %.40q", value)
			}
			h.Length = int64(length)
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			h.chunked = strings.EqualFold(value, "chunked")
		case bytes.EqualFold(name, []byte("Connection")):
			h.Close = strings.EqualFold(value, "close") || h.Close && !strings.EqualFold(value, "keep-alive")
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

// Body reads one response's body through its framing.
type Body struct {
	Head
	Size  int64     // bytes read so far
	First time.Time // when the first byte was read

	c     *Conn
	toEOF bool  // the end of the connection ends the body
	left  int64 // remaining bytes of the body, or of the current chunk
	begun bool  // a chunk was read, but not the end of its line
	done  bool
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
	if b.Size == 0 {
		b.First = time.Now()
	}
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
	text, _, _ := strings.Cut(string(line), ";")
	n, err := strconv.ParseUint(strings.TrimSpace(text), 16, 60)
	if err != nil {
		return 0, fmt.Errorf("bad chunk size %.40q", line)
	}
	return int64(n), nil
}

// Drain drops the rest of the body.
func (b *Body) Drain() error {
	for {
		if _, err := b.Skip(discardStep); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// All reads the whole body of a response with status 200. It is valid until the next response.
func (b *Body) All() ([]byte, error) {
	if err := b.OK(); err != nil {
		return nil, err
	}
	c := b.c
	c.whole = c.whole[:0]
	for {
		p, err := b.Next(ConnBuffer)
		if err == io.EOF {
			return c.whole, nil
		}
		if err != nil {
			return nil, err
		}
		if len(c.whole)+len(p) > maxWhole {
			return nil, errors.New("response too long")
		}
		c.whole = append(c.whole, p...)
	}
}

// OK returns an error for a response with a status other than 200, with the beginning of its body.
func (b *Body) OK() error {
	if b.Status == 200 {
		return nil
	}
	p, err := b.Next(1000)
	text := Clean(p[:min(len(p), 200)])
	if err == nil {
		err = b.Drain()
	}
	if err != nil && err != io.EOF {
		return fmt.Errorf("HTTP status %d; then %w", b.Status, err)
	}
	return &HTTPError{Status: b.Status, Text: text}
}

// HTTPError is a complete response that is not the expected one. The connection can be used again.
type HTTPError struct {
	Status int
	Text   string
}

func (e *HTTPError) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("HTTP status %d", e.Status)
	}
	return fmt.Sprintf("HTTP status %d: %s", e.Status, e.Text)
}

// Clean returns text from a server as one line that is safe for a terminal.
func Clean(b []byte) string {
	s := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || 0x80 <= r && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(b), "?"))
	return strings.TrimSpace(s)
}
