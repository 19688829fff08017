package receivepack

import (
	"sync"
	"unicode/utf8"
)

// speech passes on what hooks say, by lines, within bounds, and without what a terminal could take for a command, but
// for colours. Safe for concurrent use.
type speech struct {
	say func(line string) error

	mu   sync.Mutex
	left int // bytes that may still be said
	line []byte
}

func (s *speech) text(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range b {
		if s.left <= 0 {
			return
		}
		if c == '\n' {
			s.flush()
			continue
		}
		s.left--
		if s.line = append(s.line, c); len(s.line) == maxSaidLine || s.left == 0 {
			s.flush()
		}
	}
}

func (s *speech) flush() {
	if len(s.line) > 0 && s.say(string(forTerminal(s.line))) != nil {
		s.left = 0
	}
	s.line = s.line[:0]
}

func (s *speech) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flush()
}

// forTerminal replaces control characters of a line by spaces, in place, but for tabs and the sequences that set
// colours (ECMA-48, SGR). Bytes that are not UTF-8 stay, but for those that are control characters in eight bits.
func forTerminal(line []byte) []byte {
	for i := 0; i < len(line); {
		c := line[i]
		r, size := utf8.DecodeRune(line[i:])
		switch {
		case c == 0x1b:
			if size = colour(line[i:]); size == 0 {
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

// colour is the length of the sequence at the begin of b that sets colours; 0: there is none.
func colour(b []byte) int {
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
