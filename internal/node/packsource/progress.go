package packsource

import (
	"bytes"
	"sync"
)

// maxProgress is the maximum length in bytes of the text that take returns.
const maxProgress = 4 << 10

// progressText collects git's progress messages. It has whole lines only. It drops error messages, which are logged.
type progressText struct {
	mu   sync.Mutex
	line []byte // the beginning of a line
	text []byte // whole lines
}

// add takes a piece of git's standard error.
func (p *progressText) add(piece []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(piece) > 0 {
		end := bytes.IndexAny(piece, "\r\n")
		if end < 0 {
			if len(p.line)+len(piece) <= maxProgress {
				p.line = append(p.line, piece...)
			}
			return
		}
		p.line = append(p.line, piece[:end+1]...)
		piece = piece[end+1:]
		if isProgress(p.line) && len(p.text)+len(p.line) <= maxProgress {
			p.text = append(p.text, p.line...)
		}
		p.line = p.line[:0]
	}
}

func isProgress(line []byte) bool {
	for _, prefix := range []string{"fatal:", "error:", "warning:", "hint:"} {
		if bytes.HasPrefix(line, []byte(prefix)) {
			return false
		}
	}
	return true
}

// take returns the lines since the last call. They belong to the caller.
func (p *progressText) take() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := p.text
	p.text = nil
	return text
}
