package receivepack

import (
	"sync"
	"unicode/utf8"
)

const (
	// maxHookOutput is the maximum output of all hooks of one push in bytes. The remaining output is dropped.
	maxHookOutput = 64 << 10
	// maxOutputLine is the maximum length of a line in bytes. Longer ones are split.
	maxOutputLine = 1 << 10
)

// hookOutput passes the output of hooks on to the client, line by line. It replaces the control characters of terminals
// except colours. It is safe for concurrent use.
type hookOutput struct {
	writeLine func(line string) error

	mu        sync.Mutex
	remaining int // bytes
	line      []byte
}

// newHookOutput continues the output of the push.
func (p *pushSession) newHookOutput(writeLine func(line string) error) *hookOutput {
	return &hookOutput{writeLine: writeLine, remaining: maxHookOutput - p.hooks.outputBytes}
}

func (o *hookOutput) write(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range b {
		if o.remaining <= 0 {
			return
		}
		if c == '\n' {
			o.flush()
			continue
		}
		o.remaining--
		if o.line = append(o.line, c); len(o.line) == maxOutputLine || o.remaining == 0 {
			o.flush()
		}
	}
}

func (o *hookOutput) flush() {
	if len(o.line) > 0 && o.writeLine(string(forTerminal(o.line))) != nil {
		o.remaining = 0
	}
	o.line = o.line[:0]
}

// close writes an unfinished line.
func (o *hookOutput) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flush()
}

// forTerminal replaces the control characters of a line by spaces, in place, except tabs and the sequences that set
// colours (ECMA-48, SGR). Bytes that are not UTF-8 stay, except eight-bit control characters.
func forTerminal(line []byte) []byte {
	for i := 0; i < len(line); {
		c := line[i]
		r, size := utf8.DecodeRune(line[i:])
		switch {
		case c == 0x1b:
			if size = colourLength(line[i:]); size == 0 {
				line[i], size = ' ', 1
			}
		case c == '\t':
		case c < ' ' || c == 0x7f || r == utf8.RuneError && size == 1 && c < 0xa0:
			line[i] = ' '
		case 0x80 <= r && r < 0xa0: // two bytes
			line[i], line[i+1] = ' ', ' '
		}
		i += size
	}
	return line
}

// colourLength returns the length of the sequence at the start of b that sets colours; 0: there is none.
func colourLength(b []byte) int {
	if len(b) < 3 || b[1] != '[' {
		return 0
	}
	for i, c := range b[2:] {
		switch {
		case c == 'm':
			return i + 3
		case ('0' > c || c > '9') && c != ';' && c != ':':
			return 0
		}
	}
	return 0
}
