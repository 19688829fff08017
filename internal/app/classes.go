package app

import (
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Class is the expected duration of a request. It is a metric label.
type Class string

// The classes.
const (
	Fast   Class = "fast"   // may use the reserved slots
	Normal Class = "normal" // matches no pattern
	Slow   Class = "slow"
)

// Classes assigns classes to paths. A path that is in both lists is Fast.
type Classes struct{ Fast, Slow []Pattern }

// Pattern matches paths. A "*" matches any text, including slashes and no text.
type Pattern string

const (
	maxPattern = 1024 // bytes
	maxStars   = 8
)

// ParsePattern checks a pattern.
func ParsePattern(text string) (Pattern, error) {
	switch {
	case !strings.HasPrefix(text, "/") && !strings.HasPrefix(text, "*"):
		return "", fault.New(fault.Invalid, "pattern %.80q: must begin with \"/\" or \"*\", as in \"/-/readiness*\"", text)
	case len(text) > maxPattern:
		return "", fault.New(fault.Invalid, "pattern %.80q...: longer than %d bytes", text, maxPattern)
	case strings.Count(text, "*") > maxStars:
		return "", fault.New(fault.Invalid, "pattern %.80q: more than %d stars", text, maxStars)
	case strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return "", fault.New(fault.Invalid, "pattern %.80q: contains a control character", text)
	case strings.Contains(text, "?"):
		return "", fault.New(fault.Invalid, "pattern %.80q: contains a \"?\"; patterns match paths without the query", text)
	}
	return Pattern(text), nil
}

// Match reports whether the pattern matches a path.
func (p Pattern) Match(path string) bool {
	head, rest, hasStar := strings.Cut(string(p), "*")
	if !strings.HasPrefix(path, head) {
		return false
	}
	path = path[len(head):]
	for hasStar {
		head, rest, hasStar = strings.Cut(rest, "*")
		if !hasStar {
			return strings.HasSuffix(path, head)
		}
		i := strings.Index(path, head)
		if i < 0 {
			return false
		}
		path = path[i+len(head):]
	}
	return path == ""
}

// MatchAny reports whether one of the patterns matches a path.
func MatchAny(patterns []Pattern, path string) bool {
	for _, p := range patterns {
		if p.Match(path) {
			return true
		}
	}
	return false
}

// of returns the class of a path. A path that a worker may read as another path is not Fast.
func (c *Classes) of(path string) Class {
	switch {
	case len(c.Fast) > 0 && MatchAny(c.Fast, path) && isPlain(path):
		return Fast
	case len(c.Slow) > 0 && MatchAny(c.Slow, path):
		return Slow
	}
	return Normal
}

// isPlain reports whether a path has no empty segments and no segments that begin with a dot.
func isPlain(path string) bool {
	return !strings.Contains(path, "//") && !strings.Contains(path, "/.") && !strings.Contains(path, "\\")
}
