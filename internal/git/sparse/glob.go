package sparse

import (
	"bytes"
	"math/bits"
)

// maxTokens is the maximum length of a glob, so that a set of its positions fits on the stack.
const maxTokens = 1023

// glob is a pattern in the language of git's wildmatch. It is matched by following all its positions at once, so that
// no pattern takes exponential time. The zero value matches the empty text.
type glob struct {
	tokens []token
	sets   []byteSet
}

type token struct {
	kind kind
	char byte   // literal
	set  uint16 // position in sets
}

type kind uint8

const (
	literal kind = iota
	oneOf        // one byte of a set
	star         // any text without a slash
	any          // any text
	dirs         // nothing, or any text that ends in a slash
)

func (k kind) mayBeEmpty() bool { return k >= star }

type byteSet [4]uint64

func (s *byteSet) add(c byte)      { s[c>>6] |= 1 << (c & 63) }
func (s *byteSet) remove(c byte)   { s[c>>6] &^= 1 << (c & 63) }
func (s *byteSet) has(c byte) bool { return s[c>>6]>>(c&63)&1 != 0 }

func (s *byteSet) addRange(from, to byte) {
	for c := int(from); c <= int(to); c++ {
		s.add(byte(c))
	}
}

func (s *byteSet) invert() {
	for i := range s {
		s[i] = ^s[i]
	}
}

func (g *glob) len() int { return len(g.tokens) }

// compile parses a pattern. If pathname is set, only "**" between slashes matches a slash; otherwise everything does
// (WM_PATHNAME). ok is false if the pattern is malformed, which means that it matches nothing.
func compile(pattern []byte, pathname bool) (g glob, ok bool) {
	for i := 0; i < len(pattern); {
		switch c := pattern[i]; c {
		case '*':
			stars := len(pattern[i:]) - len(bytes.TrimLeft(pattern[i:], "*"))
			i += g.addStars(pattern, i, stars, pathname)
		case '?':
			var none byteSet
			g.addSet(none, true, pathname)
			i++
		case '[':
			set, negated, n := parseClass(pattern[i:])
			if n == 0 {
				return glob{}, false
			}
			g.addSet(set, negated, pathname)
			i += n
		case '\\':
			if i++; i == len(pattern) {
				return glob{}, false
			}
			c = pattern[i]
			fallthrough
		default:
			g.tokens = append(g.tokens, token{kind: literal, char: c})
			i++
		}
	}
	return g, true
}

// addStars adds the token of a run of stars, and returns the number of bytes of the pattern that it stands for.
func (g *glob) addStars(pattern []byte, at, stars int, pathname bool) (used int) {
	rest := pattern[at+stars:]
	k := star
	switch {
	case !pathname:
		k = any
	case stars == 1 || at > 0 && pattern[at-1] != '/':
	case bytes.HasPrefix(rest, []byte("/")):
		k, used = dirs, 1
	case len(rest) == 0 || bytes.HasPrefix(rest, []byte(`\/`)):
		k = any
	}
	if n := len(g.tokens); k != dirs || n == 0 || g.tokens[n-1].kind != dirs { // "**/**/" is "**/"
		g.tokens = append(g.tokens, token{kind: k})
	}
	return stars + used
}

func (g *glob) addSet(set byteSet, negated, pathname bool) {
	if negated {
		set.invert()
	}
	if pathname {
		set.remove('/')
	}
	if len(g.tokens) <= maxTokens { // longer patterns are refused
		g.tokens = append(g.tokens, token{kind: oneOf, set: uint16(len(g.sets))})
		g.sets = append(g.sets, set)
	}
}

// positions is a set of positions in a glob.
type positions [(maxTokens + 1) / 64]uint64

// match reports whether the glob matches all of text.
func (g *glob) match(text []byte) bool {
	if len(g.tokens) == 0 {
		return len(text) == 0
	}
	last := g.tokens[len(g.tokens)-1]
	if last.kind == literal && (len(text) == 0 || text[len(text)-1] != last.char) {
		return false // as for most texts and "*.suffix"
	}
	var sets [2]positions
	words := len(g.tokens)/64 + 1
	end := g.run(sets[0][:words], sets[1][:words], text)
	return end[len(g.tokens)/64]>>(len(g.tokens)%64)&1 != 0
}

// after returns the positions after a text.
func (g *glob) after(text []byte) []uint64 {
	words := len(g.tokens)/64 + 1
	return g.run(make([]uint64, words), make([]uint64, words), text)
}

// run returns the positions after a text, in one of two empty sets.
func (g *glob) run(current, next []uint64, text []byte) []uint64 {
	g.enter(current, 0)
	for _, c := range text {
		clear(next)
		var left uint64
		for w, word := range current {
			left |= word
			for ; word != 0; word &= word - 1 {
				g.step(next, 64*w+bits.TrailingZeros64(word), c)
			}
		}
		if left == 0 {
			return next // none
		}
		current, next = next, current
	}
	return current
}

// enter adds a position, and those that follow it without any text.
func (g *glob) enter(set []uint64, at int) {
	for ; ; at++ {
		set[at/64] |= 1 << (at % 64)
		if at == len(g.tokens) || !g.tokens[at].kind.mayBeEmpty() {
			return
		}
	}
}

// step adds the positions that one byte leads to from a position.
func (g *glob) step(next []uint64, at int, c byte) {
	if at == len(g.tokens) {
		return
	}
	switch t := g.tokens[at]; t.kind {
	case literal:
		if c == t.char {
			g.enter(next, at+1)
		}
	case oneOf:
		if g.sets[t.set].has(c) {
			g.enter(next, at+1)
		}
	case star:
		if c != '/' {
			g.enter(next, at)
		}
	case any:
		g.enter(next, at)
	case dirs:
		next[at/64] |= 1 << (at % 64) // in the middle of a name it cannot end
		if c == '/' {
			g.enter(next, at+1)
		}
	}
}
