package receivepack

import (
	"bytes"
	"slices"
	"strings"
	"sync"
)

// gitErrors keeps the first error messages in the output of Git. It is safe for concurrent use.
type gitErrors struct {
	mu    sync.Mutex
	line  []byte
	lines []string
	size  int
}

const (
	maxGitErrors    = 2 << 10 // bytes
	maxGitErrorLine = 1 << 10
)

// Write adds output, which may end within a line.
func (c *gitErrors) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for rest := b; len(rest) > 0; {
		end := bytes.IndexAny(rest, "\r\n")
		part := rest
		if end >= 0 {
			part = rest[:end]
		}
		c.line = append(c.line, part[:min(len(part), maxGitErrorLine-len(c.line))]...)
		if end < 0 {
			break
		}
		c.flush()
		rest = rest[end+1:]
	}
	return len(b), nil
}

// flush ends a line, and keeps it if it is a new error message.
func (c *gitErrors) flush() {
	line := string(c.line)
	c.line = c.line[:0]
	isError := strings.HasPrefix(line, "error: ") || strings.HasPrefix(line, "fatal: ")
	if !isError || c.size+len(line) > maxGitErrors || slices.Contains(c.lines, line) {
		return
	}
	c.size += len(line)
	c.lines = append(c.lines, clean(line, maxGitErrorLine))
}

// text returns the messages in one line.
func (c *gitErrors) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flush()
	return strings.Join(c.lines, "; ")
}
