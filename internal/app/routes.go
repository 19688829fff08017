package app

import (
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Class is how long requests are expected to take. It is a metric label.
type Class string

// The classes.
const (
	Fast   Class = "fast"   // may take slots that are in reserve
	Normal Class = "normal" // what no pattern is about
	Slow   Class = "slow"
)

// Classes tells requests apart by their paths. A path that is in both lists is fast.
type Classes struct{ Fast, Slow []Pattern }

// Pattern is for paths: a "*" in it stands for any text, none and slashes included.
type Pattern string

// maxPattern bounds a pattern in bytes, maxStars its stars: each may cost a walk over the path.
const (
	maxPattern = 1024
	maxStars   = 8
)

// ParsePattern checks a pattern.
func ParsePattern(text string) (Pattern, error) {
	switch {
	case !strings.HasPrefix(text, "/") && !strings.HasPrefix(text, "*"):
		return "", fault.New(fault.Invalid, "the pattern %.80q begins with neither \"/\" nor \"*\": it is for a path, as in \"/-/readiness*\"", text)
	case len(text) > maxPattern:
		return "", fault.New(fault.Invalid, "the pattern %.80q... is longer than %d bytes", text, maxPattern)
	case strings.Count(text, "*") > maxStars:
		return "", fault.New(fault.Invalid, "the pattern %.80q has more than %d stars", text, maxStars)
	case strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return "", fault.New(fault.Invalid, "the pattern %.80q has a control character", text)
	case strings.Contains(text, "?"):
		return "", fault.New(fault.Invalid, "the pattern %.80q has a \"?\": patterns are for paths, without the query", text)
	}
	return Pattern(text), nil
}

// Match tells whether the pattern is for a path.
func (p Pattern) Match(path string) bool {
	head, rest, stars := strings.Cut(string(p), "*")
	if !strings.HasPrefix(path, head) {
		return false
	}
	path = path[len(head):]
	for stars {
		head, rest, stars = strings.Cut(rest, "*")
		if !stars {
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

// MatchAny tells whether one of the patterns is for a path.
func MatchAny(patterns []Pattern, path string) bool {
	for _, p := range patterns {
		if p.Match(path) {
			return true
		}
	}
	return false
}

// of is the class of a path. One that a worker may read as another path is not fast: the slots in reserve are not for whoever writes it so.
func (c *Classes) of(path string) Class {
	switch {
	case len(c.Fast) > 0 && MatchAny(c.Fast, path) && plain(path):
		return Fast
	case len(c.Slow) > 0 && MatchAny(c.Slow, path):
		return Slow
	}
	return Normal
}

// plain tells a path without empty segments, and those of dots.
func plain(path string) bool {
	return !strings.Contains(path, "//") && !strings.Contains(path, "/.") && !strings.Contains(path, "\\")
}

// What bounds a route's name: requests whose paths differ beyond it count as alike.
const (
	routeSegments = 6
	routeSegment  = 32 // bytes; longer ones are data
	routeMethod   = 16 // bytes; longer ones are all one
)

// route is the name of all requests that are alike by method and path: their durations are estimated together. What looks like an ID becomes ":".
func route(method, path string) string {
	if len(method) > routeMethod {
		method = ":"
	}
	var b strings.Builder
	b.Grow(len(method) + 1 + min(len(path), 64))
	b.WriteString(method)
	n := 0
	for segment := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		if n++; n > routeSegments {
			b.WriteString("/...")
			break
		}
		b.WriteByte('/')
		if isID(segment) {
			b.WriteByte(':')
		} else {
			b.WriteString(segment)
		}
	}
	return b.String()
}

// isID tells a number, a hash, a UUID and other data from a word. Whatever has three digits, or is long, is data.
func isID(segment string) bool {
	if len(segment) > routeSegment {
		return true
	}
	digits, others := 0, 0
	for i := range len(segment) {
		if c := segment[i]; c >= '0' && c <= '9' {
			digits++
		} else {
			others++
		}
	}
	return digits > 0 && (others == 0 || digits >= 3)
}
