package resolve

import (
	"errors"
	"net"
	"strconv"
)

// guarded is a connection to a Redis that may send wrong lengths. The client allocates memory for announced lengths, so
// a reply that is longer than any value of this cache ends the connection before the client reads it.
type guarded struct {
	net.Conn
	line   []byte // received part of a line with a type or length
	skip   int    // remaining bytes of a value, including its line end
	left   int    // remaining elements of arrays
	nested int    // elements of arrays in arrays since the last command
	bytes  int    // since the last command
	err    error
}

const (
	maxLine    = 4096     // of a reply, in bytes; an error is one line
	maxElement = 8192     // of a reply, in bytes; values are not longer
	maxArray   = 2048     // elements of a reply, more than readBatch
	maxNested  = 256      // nested elements of a reply; a greeting has some
	maxReply   = 16 << 20 // bytes in reply to one command, or to those of a pipeline
)

var errTooLong = errors.New("Redis: response too long")

// Write implements net.Conn.
func (g *guarded) Write(p []byte) (int, error) {
	g.nested, g.bytes = 0, 0
	return g.Conn.Write(p)
}

// Read implements net.Conn.
func (g *guarded) Read(p []byte) (int, error) {
	if g.err != nil {
		return 0, g.err
	}
	n, err := g.Conn.Read(p)
	if bad := g.scan(p[:n]); bad != nil {
		g.err = bad
		g.Conn.Close()
		return 0, bad
	}
	return n, err
}

// scan parses the lengths of the protocol.
func (g *guarded) scan(p []byte) error {
	if g.bytes += len(p); g.bytes > maxReply {
		return errTooLong
	}
	for len(p) > 0 {
		if g.skip > 0 {
			n := min(g.skip, len(p))
			g.skip -= n
			p = p[n:]
			continue
		}
		c := p[0]
		p = p[1:]
		if c != '\n' {
			if g.line = append(g.line, c); len(g.line) > maxLine {
				return errTooLong
			}
			continue
		}
		if err := g.element(g.line); err != nil {
			return err
		}
		g.line = g.line[:0]
	}
	return nil
}

// element parses a complete line, which starts an element.
func (g *guarded) element(line []byte) error {
	inside := g.left > 0
	if inside {
		g.left--
	}
	if len(line) < 2 {
		return nil // the client reports it
	}
	switch line[0] {
	case '+', '-', ':', '_', '#', ',', '(':
		return nil
	}
	text := string(line[1:])
	if text[len(text)-1] == '\r' {
		text = text[:len(text)-1]
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return errors.New("Redis: invalid response")
	}
	switch line[0] {
	case '$', '!', '=':
		if n > maxElement {
			return errTooLong
		}
		if n >= 0 {
			g.skip = n + 2
		}
	case '*', '~', '>', '%', '|':
		if n > maxArray {
			return errTooLong
		}
		g.left += max(n, 0)
		if inside {
			g.nested += max(n, 0)
		}
		if g.nested > maxNested {
			return errTooLong
		}
	default:
		return errors.New("Redis: invalid response")
	}
	return nil
}
