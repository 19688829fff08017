package packcache

import "bytes"

// progressTail is the maximum size of the kept progress text of a fill.
const progressTail = 4 << 10

// progress keeps the end of a fill's progress text. Positions count all bytes since the fill began. A line ends with a
// newline, or with a carriage return if the next one overwrites it on the screen.
type progress struct {
	text []byte
	end  int64 // position after text
}

func (p *progress) start() int64 { return p.end - int64(len(p.text)) }

func (p *progress) add(text []byte) {
	p.end += int64(len(text))
	if len(text) > progressTail {
		text = text[len(text)-progressTail:]
		p.text = p.text[:0]
	}
	p.text = append(p.text, text...)
	if over := len(p.text) - progressTail; over > 0 {
		rest := p.text[over:]
		if i := bytes.IndexAny(rest, "\r\n"); i >= 0 {
			rest = rest[i+1:]
		}
		p.text = p.text[:copy(p.text, rest)]
	}
}

// since copies the text after pos into buf, and returns it with its end position. A reader that is too slow misses the
// oldest lines.
func (p *progress) since(pos int64, buf []byte) ([]byte, int64) {
	i := max(pos-p.start(), 0)
	n := copy(buf, p.text[i:])
	return buf[:n], p.start() + i + int64(n)
}

// latest returns the position for a late reader, which gets the last complete line and the text after it.
func (p *progress) latest() int64 {
	i := bytes.LastIndexAny(p.text, "\r\n")
	if i < 0 {
		return p.start()
	}
	return p.start() + int64(bytes.LastIndexAny(p.text[:i], "\r\n")+1)
}
