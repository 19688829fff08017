package app

import (
	"bytes"
	"errors"
	"io"
	"net/textproto"
	"strings"
	"time"
)

// errWait is the error of a read that would have to wait.
var errWait = errors.New("nothing more is there")

// incoming is the body of an answer as it comes off a connection.
type incoming struct {
	call    *call
	cn      *conn
	state   int
	left    int64 // bytes of the body, or of the chunk
	trailer []field
	skipped int // bytes of trailers and of chunk extensions
}

// The states of incoming.
const (
	sized     = iota // left bytes are to come
	open             // up to the connection's end
	inChunk          // left bytes of a chunk are to come
	chunkEnd         // the line's end behind a chunk
	chunkHead        // a chunk's length
	trailing         // trailers
	whole            // all was read
)

func (a *answer) incoming(c *call) *incoming {
	in := &c.in
	*in = incoming{call: c, cn: c.cn, state: sized, left: a.length}
	if a.chunked {
		in.state = chunkHead
	} else if a.length < 0 {
		in.state = open
	}
	return in
}

// read gives what is there, of the body alone; if nothing is, it waits, or fails with errWait. io.EOF: the body is whole.
func (in *incoming) read(p []byte, wait bool) (int, error) {
	for {
		switch in.state {
		case whole:
			return 0, io.EOF
		case sized, inChunk:
			if in.left == 0 {
				if in.state == sized {
					in.state = whole
				} else {
					in.state = chunkEnd
				}
				continue
			}
			n, err := in.bytes(p[:min(int64(len(p)), in.left)], wait)
			in.left -= int64(n)
			return n, err
		case open:
			n, err := in.bytes(p, wait)
			if err == io.ErrUnexpectedEOF {
				in.state, err = whole, io.EOF
			}
			return n, err
		default:
			line, err := in.line(wait)
			if err == nil {
				err = in.step(line)
			}
			if err != nil {
				return 0, err
			}
		}
	}
}

// bytes gives bytes of the connection.
func (in *incoming) bytes(p []byte, wait bool) (int, error) {
	cn := in.cn
	if cn.at < cn.end {
		n := copy(p, cn.buf[cn.at:cn.end])
		cn.at += n
		return n, nil
	}
	if !wait {
		return 0, errWait
	}
	if err := in.limit(); err != nil {
		return 0, err
	}
	n, err := cn.Conn.Read(p)
	if n > 0 {
		return n, nil
	}
	return 0, cutOff(err)
}

// limit bounds the time that the worker may be silent.
func (in *incoming) limit() error {
	in.cn.until = time.Time{}
	return in.call.limit(in.cn.SetReadDeadline, in.call.e.p.IdleTime)
}

func cutOff(err error) error {
	if err == io.EOF || err == nil {
		return io.ErrUnexpectedEOF
	}
	return err
}

// maxSkipped bounds what chunks have beside their data, and trailers.
const maxSkipped = 1 << 20

// line gives a line without its end.
func (in *incoming) line(wait bool) (string, error) {
	cn := in.cn
	for {
		if i := bytes.IndexByte(cn.buf[cn.at:cn.end], '\n'); i >= 0 {
			line := cn.buf[cn.at : cn.at+i]
			cn.at += i + 1
			if len(line) == 0 || line[len(line)-1] != '\r' {
				return "", bad("a line of a chunk has no proper end")
			}
			return string(line[:len(line)-1]), nil
		}
		if cn.end-cn.at > maxLine {
			return "", bad("a line between chunks is too long")
		}
		if !wait {
			return "", errWait
		}
		if err := in.limit(); err != nil {
			return "", err
		}
		if err := cn.fill(); err != nil {
			return "", cutOff(err)
		}
	}
}

// maxLine is the longest line between chunks.
const maxLine = 8 << 10

// step takes a line that is no data (RFC 9112, section 7.1).
func (in *incoming) step(line string) (err error) {
	switch in.state {
	case chunkEnd:
		if line != "" {
			return bad("a chunk is longer than it said")
		}
		in.state = chunkHead
	case chunkHead:
		size, extension, _ := strings.Cut(line, ";")
		if in.skipped += len(extension); in.skipped > maxSkipped || !validValue(extension) {
			return bad("bad chunk extensions")
		}
		if in.left, err = parseHex(strings.TrimRight(size, " \t")); err != nil {
			return err
		}
		if in.state = inChunk; in.left == 0 {
			in.state = trailing
		}
	case trailing:
		if line == "" {
			in.state = whole
			return nil
		}
		in.skipped += len(line)
		name, value, ok := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		if !ok || !validName(name) || !validValue(value) || len(in.trailer) >= maxFields || in.skipped > maxSkipped {
			return bad("bad trailer")
		}
		in.trailer = append(in.trailer, field{textproto.CanonicalMIMEHeaderKey(name), value})
	}
	return nil
}

func parseHex(s string) (int64, error) {
	if s == "" || len(s) > 15 {
		return 0, bad("bad length of a chunk")
	}
	n := int64(0)
	for _, c := range []byte(s) {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, bad("bad length of a chunk")
		}
		n = n<<4 | int64(c)
	}
	return n, nil
}

// readHead reads up to the empty line that ends a header, and gives it with that line.
func (c *conn) readHead() (string, error) {
	line, seen := 0, 0 // where the line begins, and what was looked at
	for {
		for {
			i := bytes.IndexByte(c.buf[c.at+seen:c.end], '\n')
			if i < 0 {
				break
			}
			end := seen + i
			if end == line || c.buf[c.at+end-1] != '\r' {
				return "", bad("a line of its header has no proper end")
			}
			if line > 0 && end == line+1 {
				head := string(c.buf[c.at : c.at+end+1])
				c.at += end + 1
				return head, nil
			}
			line = end + 1
			seen = line
		}
		if seen = c.end - c.at; seen >= maxHeader {
			return "", errLongHeader
		}
		if err := c.fill(); err != nil {
			return "", err
		}
	}
}
