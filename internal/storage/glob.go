package storage

import (
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Glob is a pattern for whole names: "*" stands for any bytes but a slash, "?" for one byte that is no slash, "**" for any bytes at all;
// everything else stands for itself. To match takes a step for each byte of a name, whatever the pattern: no attempt is made twice.
type Glob struct {
	literal string
	parts   int        // of the pattern: bytes, and runs of stars as one
	takes   *[256]mark // the parts that one byte is taken by, for each byte
	stays   [2]mark    // the parts that take any number: of bytes that are slashes, and that are not
}

// maxGlob bounds a pattern in bytes.
const maxGlob = 256

// mark is a set of a pattern's parts, and of its end behind them.
type mark [maxGlob/64 + 1]uint64

func (m *mark) add(part int)      { m[part/64] |= 1 << (part % 64) }
func (m *mark) has(part int) bool { return m[part/64]&(1<<(part%64)) != 0 }

// ParseGlob reads a pattern. The error is of kind Invalid.
func ParseGlob(pattern string) (Glob, error) {
	if len(pattern) > maxGlob {
		return Glob{}, fault.New(fault.Invalid, "the pattern is longer than %d bytes", maxGlob)
	}
	g := Glob{literal: pattern, takes: new([256]mark)}
	if i := strings.IndexAny(pattern, "*?"); i >= 0 {
		g.literal = pattern[:i]
	}
	for rest := pattern; rest != ""; g.parts++ {
		switch c := rest[0]; c {
		case '*':
			after := strings.TrimLeft(rest, "*")
			g.stays[1].add(g.parts)
			if len(rest)-len(after) > 1 {
				g.stays[0].add(g.parts)
			}
			rest = after
			continue
		case '?':
			for b := range g.takes {
				if b != '/' {
					g.takes[b].add(g.parts)
				}
			}
		default:
			g.takes[c].add(g.parts)
		}
		rest = rest[1:]
	}
	return g, nil
}

// Literal is what every name that matches begins with.
func (g Glob) Literal() string { return g.literal }

// Match tells whether a name matches. It follows all ways through the pattern at once: at holds the parts that the next byte may belong to.
func (g Glob) Match(name string) bool {
	if !strings.HasPrefix(name, g.literal) {
		return false
	}
	words := g.parts/64 + 1
	var at mark
	at.add(0)
	g.skip(&at, words)
	for i := range len(name) {
		c, other := name[i], 1
		if c == '/' {
			other = 0
		}
		takes, stays := &g.takes[c], &g.stays[other]
		carry, some := uint64(0), uint64(0)
		for w := range words {
			taken := at[w] & takes[w]
			at[w] = at[w]&stays[w] | taken<<1 | carry
			carry, some = taken>>63, some|at[w]
		}
		if some == 0 {
			return false
		}
		g.skip(&at, words)
	}
	return at.has(g.parts)
}

// skip adds what follows a star that takes nothing. No star follows another.
func (g Glob) skip(at *mark, words int) {
	carry := uint64(0)
	for w := range words {
		stars := at[w] & g.stays[1][w]
		at[w] |= stars<<1 | carry
		carry = stars >> 63
	}
}
