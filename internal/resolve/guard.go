package resolve

import (
	"errors"
	"net"
	"strconv"
)

// guarded is a connection to a Redis that may lie about lengths: the client makes room for what it is told will come.
// What is longer than our own values can be, ends the connection before the client sees it.
type guarded struct {
	net.Conn
	line   []byte // as much as has come of the line that says what comes
	skip   int    // bytes of a value that are left, with its line end
	left   int    // elements of arrays that are left
	nested int    // elements of arrays in arrays since the last command
	bytes  int    // since the last command
	err    error
}

const (
	maxLine    = 4096     // of a reply, in bytes; an error is one
	maxElement = 8192     // of a reply, in bytes; more than maxValue
	maxArray   = 2048     // elements of a reply; more than readBatch
	maxNested  = 256      // elements of arrays in a reply to one command: a greeting has some
	maxReply   = 16 << 20 // bytes in reply to one command, or to those of a pipeline
)

var errTooLong = errors.New("Redis sends more than was asked for")

// Write is a net.Conn's.
func (g *guarded) Write(p []byte) (int, error) {
	g.nested, g.bytes = 0, 0
	return g.Conn.Write(p)
}

// Read is a net.Conn's.
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

// scan follows the protocol as far as lengths go.
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

// element looks at a whole line, which begins an element.
func (g *guarded) element(line []byte) error {
	inside := g.left > 0
	if inside {
		g.left--
	}
	if len(line) < 2 {
		return nil // the client complains
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
		return errors.New("Redis speaks another protocol")
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
		return errors.New("Redis speaks another protocol")
	}
	return nil
}
