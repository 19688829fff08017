package schema

import (
	"bytes"
	"unicode/utf8"
)

// Limits in bytes: of the content of a chunk, and of the part of it that precedes the first match.
const (
	maxChunk  = 64 << 10
	maxBefore = 1 << 10
)

// bounded returns the chunk with at most maxChunk bytes of content, which begin shortly before the first match.
func (c Chunk) bounded() Chunk {
	if len(c.Content) <= maxChunk || len(c.Ranges) == 0 {
		c.Content = c.Content[:min(len(c.Content), maxChunk)]
		return c
	}
	first := c.Ranges[0].Start
	if skip := first.Offset - c.Start.Offset - maxBefore; skip > 0 && skip < len(c.Content) &&
		first.Line == c.Start.Line {
		for skip > 0 && !utf8.RuneStart(c.Content[skip]) {
			skip--
		}
		c.Start.Column += utf8.RuneCount(c.Content[:skip])
		c.Start.Offset += skip
		c.Content = c.Content[skip:]
	}
	end := min(len(c.Content), maxChunk)
	for end < len(c.Content) && end > 0 && !utf8.RuneStart(c.Content[end]) {
		end--
	}
	c.Content = c.Content[:end]
	n := len(c.Ranges)
	for n > 1 && c.Ranges[n-1].End.Offset > c.Start.Offset+end {
		n--
	}
	c.Ranges = c.Ranges[:n]
	return c
}

// lines walks over the lines of a chunk that have matches.
type lines struct {
	rest   []byte
	todo   []Range // those that end in rest
	number int     // of the next line; after next, of text
	column int     // of the first code point of text in its line
	first  bool

	text   []byte
	ranges []Range // those that overlap the line
}

func linesOf(c Chunk) lines {
	return lines{rest: c.Content, todo: c.Ranges, number: c.Start.Line - 1, column: c.Start.Column, first: true}
}

func (l *lines) next() bool {
	for len(l.rest) > 0 && len(l.todo) > 0 {
		l.number++
		if !l.first {
			l.column = 0
		}
		l.first = false
		l.text = l.rest
		if i := bytes.IndexByte(l.rest, '\n'); i >= 0 {
			l.text, l.rest = l.rest[:i], l.rest[i+1:]
		} else {
			l.rest = nil
		}
		l.text = bytes.TrimSuffix(l.text, []byte{'\r'})
		for len(l.todo) > 0 && l.todo[0].End.Line < l.number {
			l.todo = l.todo[1:]
		}
		n := 0
		for n < len(l.todo) && l.todo[n].Start.Line <= l.number {
			n++
		}
		if n > 0 {
			l.ranges = l.todo[:n]
			if l.endsHere(n) {
				continue
			}
			return true
		}
	}
	return false
}

// endsHere reports whether the first n ranges end before the first byte of the line.
func (l *lines) endsHere(n int) bool {
	for i := range l.ranges[:n] {
		if r := &l.ranges[i]; r.Start.Line == l.number || r.End.Line > l.number || r.End.Column > 0 {
			return false
		}
	}
	return true
}

// spans returns the parts of the ranges that are in the line, in code points: start and end, or start and length.
func (l *lines) spans(ends bool) [][2]int {
	spans := make([][2]int, len(l.ranges))
	length := -1 // of the line, in code points
	for i := range l.ranges {
		r := &l.ranges[i]
		from, to := 0, r.End.Column-l.column
		if r.Start.Line == l.number {
			from = max(0, r.Start.Column-l.column)
		}
		if r.End.Line > l.number {
			if length < 0 {
				length = utf8.RuneCount(l.text)
			}
			to = length
		}
		if !ends {
			to -= from
		}
		spans[i] = [2]int{from, max(0, to)}
	}
	return spans
}
