package process

import (
	"bytes"
	"strings"
	"unicode"
)

// tailSize is the number of bytes of standard error that are kept for the error.
const tailSize = 4 << 10

// tail keeps the end of a text. It is used by one goroutine at a time.
type tail struct {
	buf []byte
	cut bool // something before buf was dropped
}

func (t *tail) add(b []byte) {
	t.buf = append(t.buf, b...)
	if over := len(t.buf) - tailSize; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
		t.cut = true
	}
}

// mentions reports whether the kept text contains text.
func (t *tail) mentions(text string) bool { return bytes.Contains(t.buf, []byte(text)) }

// text returns the kept lines, without overwritten progress and without control characters.
func (t *tail) text() string {
	buf := t.buf
	if t.cut { // the first line is incomplete
		_, buf, _ = bytes.Cut(buf, []byte("\n"))
	}
	var lines []string
	for line := range strings.Lines(strings.ToValidUTF8(string(buf), "?")) {
		line = strings.TrimRight(line, "\r\n")
		line = line[strings.LastIndexByte(line, '\r')+1:]
		line = strings.TrimSpace(strings.Map(func(r rune) rune {
			if !unicode.IsPrint(r) {
				return '?'
			}
			return r
		}, line))
		if line != "" && !strings.HasSuffix(line, ", done.") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}
