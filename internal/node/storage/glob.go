package storage

import (
	"regexp"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Glob is a pattern for whole names. "*" matches any characters except slashes, "?" one character except a slash, and
// "**" any characters. The time of a match is linear in the length of the name.
type Glob struct {
	literal string
	re      *regexp.Regexp
}

// maxGlob is the maximum length of a pattern in bytes.
const maxGlob = 256

var globTokens = regexp.MustCompile(`\*+|\?|[^*?]+`)

// ParseGlob reads a pattern. The error is of kind Invalid.
func ParseGlob(pattern string) (Glob, error) {
	if len(pattern) > maxGlob {
		return Glob{}, fault.New(fault.Invalid, "pattern longer than %d bytes", maxGlob)
	}
	literal := pattern
	if i := strings.IndexAny(pattern, "*?"); i >= 0 {
		literal = pattern[:i]
	}
	expression := globTokens.ReplaceAllStringFunc(pattern, func(token string) string {
		switch {
		case token == "*":
			return "[^/]*"
		case token == "?":
			return "[^/]"
		case token[0] == '*':
			return ".*"
		}
		return regexp.QuoteMeta(token)
	})
	re, err := regexp.Compile("(?s)^" + expression + "$")
	if err != nil { // the pattern is not UTF-8
		return Glob{}, fault.Wrap(fault.Invalid, "invalid pattern", err)
	}
	return Glob{literal: literal, re: re}, nil
}

// Literal returns the text with which every matching name begins.
func (g Glob) Literal() string { return g.literal }

// Match reports whether a name matches.
func (g Glob) Match(name string) bool {
	return strings.HasPrefix(name, g.literal) && g.re.MatchString(name)
}
