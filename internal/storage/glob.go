package storage

import (
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Glob is a pattern for whole names: "*" stands for any bytes but a slash, "?" for one byte that is no slash, "**" for any bytes at all;
// everything else stands for itself.
type Glob struct{ pattern string }

// maxGlob bounds a pattern in bytes, and with it the time to match: ordinary patterns take a step for each byte of a name.
const maxGlob = 256

// ParseGlob reads a pattern. The error is of kind Invalid.
func ParseGlob(pattern string) (Glob, error) {
	if len(pattern) > maxGlob {
		return Glob{}, fault.New(fault.Invalid, "the pattern is longer than %d bytes", maxGlob)
	}
	return Glob{pattern}, nil
}

// Literal is what every name that matches begins with.
func (g Glob) Literal() string {
	if i := strings.IndexAny(g.pattern, "*?"); i >= 0 {
		return g.pattern[:i]
	}
	return g.pattern
}

// Match tells whether a name matches. Where it fails it goes back to the latest star that can take one byte more: what earlier stars took
// is the least that they can, so they need no second try.
func (g Glob) Match(name string) bool {
	p, s := 0, 0
	star, starAt := -1, 0 // behind the latest "*", and how far it has taken
	deep, deepAt := -1, 0 // the same for "**"
	for {
		switch {
		case p < len(g.pattern) && g.pattern[p] == '*':
			if strings.HasPrefix(g.pattern[p:], "**") {
				for p < len(g.pattern) && g.pattern[p] == '*' {
					p++
				}
				deep, deepAt, star = p, s, -1
			} else {
				p++
				star, starAt = p, s
			}
			continue
		case p == len(g.pattern) && s == len(name):
			return true
		case p < len(g.pattern) && s < len(name) && (g.pattern[p] == name[s] || g.pattern[p] == '?' && name[s] != '/'):
			p, s = p+1, s+1
			continue
		}
		switch {
		case star >= 0 && starAt < len(name) && name[starAt] != '/':
			starAt++
			p, s = star, starAt
		case deep >= 0 && deepAt < len(name):
			deepAt++
			p, s, star = deep, deepAt, -1
		default:
			return false
		}
	}
}
