package app

import (
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Class is the expected duration of a request. It is a metric label.
type Class string

// The classes.
const (
	Normal Class = "normal" // matches no pattern
	Slow   Class = "slow"
)

// Pattern matches paths. A "*" matches any text, including slashes and no text.
type Pattern string

// ParsePattern checks a pattern.
func ParsePattern(text string) (Pattern, error) {
	switch {
	case !strings.HasPrefix(text, "/") && !strings.HasPrefix(text, "*"):
		return "", fault.New(fault.Invalid, "pattern %.80q: must begin with \"/\" or \"*\", as in \"*/export\"", text)
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

// matchAny reports whether one of the patterns matches a path.
func matchAny(patterns []Pattern, path string) bool {
	return slices.ContainsFunc(patterns, func(p Pattern) bool { return p.Match(path) })
}

// classOf returns the class of a path.
func (r *Routing) classOf(path string) Class {
	if matchAny(r.Slow, path) {
		return Slow
	}
	return Normal
}

// isPlain reports whether a path has no empty segments and no segments that begin with a dot. A worker could read
// others as another path.
func isPlain(path string) bool {
	return !strings.Contains(path, "//") && !strings.Contains(path, "/.") && !strings.Contains(path, "\\")
}
