package compare

import (
	"bytes"
	"fmt"
	"strings"
)

// Limits of a route's name.
const (
	maxSegments   = 10
	maxSegment    = 48
	maxRouteBytes = 200
)

// Pattern is a path in which a segment may be "*", which matches any segment. The last one may be "**", which matches
// the rest. It is the route of all paths that it matches.
type Pattern struct {
	text     string
	segments []string
}

// ParsePattern parses a pattern like /users/*/avatar or /assets/**.
func ParsePattern(text string) (Pattern, error) {
	rest, absolute := strings.CutPrefix(text, "/")
	segments := strings.Split(rest, "/")
	for i, s := range segments {
		if s == "**" && i < len(segments)-1 {
			return Pattern{}, fmt.Errorf("route pattern %q: ** must be at the end", text)
		}
	}
	if !absolute || len(text) > maxRouteBytes {
		return Pattern{}, fmt.Errorf("route pattern %q: want a path like /users/*/avatar or /assets/** of at most %d bytes",
			text, maxRouteBytes)
	}
	return Pattern{text, segments}, nil
}

// fits reports whether the pattern matches a path without its first slash.
func (p *Pattern) fits(path []byte) bool {
	for i, want := range p.segments {
		if want == "**" {
			return true
		}
		segment, rest, more := bytes.Cut(path, []byte("/"))
		if want != "*" && want != string(segment) || want == "*" && len(segment) == 0 {
			return false
		}
		if last := i == len(p.segments)-1; last == more {
			return false
		}
		path = rest
	}
	return true
}

// The ends of paths after a repository's name (gitprotocol-http(5), and git-lfs).
var gitEndings = [][]byte{[]byte("/info/refs"), []byte("/git-upload-pack"), []byte("/git-receive-pack"),
	[]byte("/info/lfs/"), []byte("/objects/"), []byte("/HEAD")}

// appendRoute appends the route of a request's target: its path with placeholders for variable parts. Numbers become
// {id}, hexadecimal ones {hash}, UUIDs {uuid}, repositories {repo}, revisions and files in them {ref}, and random text
// {token}. target is the client's text.
func appendRoute(to, target []byte, patterns []Pattern) []byte {
	path := pathOf(target)
	for i := range patterns {
		if patterns[i].fits(path[1:]) {
			return append(to, patterns[i].text...)
		}
	}
	from := len(to)
	if bytes.HasPrefix(path, []byte("/-/")) {
		return clipRoute(appendOwn(to, path[3:]), from)
	} else if rest, is := gitRest(path); is {
		to = append(to, "/{repo}"...)
		path = rest
	} else if i := bytes.Index(path, []byte("/-/")); i > 0 {
		return clipRoute(appendProject(to, path[i+3:]), from)
	}
	for n := 0; len(path) > 0; n++ {
		path = path[1:] // the slash
		end := bytes.IndexByte(path, '/')
		if end < 0 {
			end = len(path)
		}
		if n == maxSegments {
			to = append(to, "/{...}"...)
			break
		}
		to = appendSegment(append(to, '/'), path[:end])
		path = path[end:]
	}
	return clipRoute(to, from)
}

func clipRoute(to []byte, from int) []byte {
	if len(to)-from > maxRouteBytes {
		to = append(to[:from+maxRouteBytes-3], "..."...)
	}
	return to
}

// pathOf removes the query, and the scheme and host of a target in absolute form. The result begins with a slash.
func pathOf(target []byte) []byte {
	if i := bytes.IndexAny(target, "?#"); i >= 0 {
		target = target[:i]
	}
	if len(target) > 0 && target[0] == '/' {
		return target
	}
	if _, rest, ok := bytes.Cut(target, []byte("://")); ok {
		if i := bytes.IndexByte(rest, '/'); i >= 0 {
			return rest[i:]
		}
		return []byte("/")
	}
	return append([]byte("/"), target...)
}

// gitRest returns the part of a path after the repository, if it is that of a git client.
func gitRest(path []byte) (rest []byte, is bool) {
	if i := bytes.Index(path, []byte(".git/")); i > 0 && path[i-1] != '/' {
		return path[i+4:], true
	}
	if bytes.HasSuffix(path, []byte(".git")) && len(path) > 5 {
		return nil, true
	}
	for _, ending := range gitEndings {
		i := bytes.LastIndex(path, ending)
		whole := i > 0 && (ending[len(ending)-1] == '/' || i+len(ending) == len(path))
		if whole && (string(ending) != "/objects/" || isObject(path[i+len(ending):])) {
			return path[i:], true
		}
	}
	return nil, false
}

// isObject reports whether the path is an object of dumb clients (gitprotocol-http(5), "Dumb Clients").
func isObject(rest []byte) bool {
	return bytes.HasPrefix(rest, []byte("info/")) || bytes.HasPrefix(rest, []byte("pack/")) || len(rest) > 3 &&
		rest[2] == '/' && isHex(rest[:2])
}

// projectPages are the pages of a project in GitLab's paths after "/-/" that continue with a revision and a file.
const projectPages = " blob tree raw blame commits find_file archive compare network graphs refs edit create file " +
	"preview "

func appendProject(to, rest []byte) []byte {
	to = append(to, "/{repo}/-"...)
	page, more, _ := bytes.Cut(rest, []byte("/"))
	to = appendSegment(append(to, '/'), page)
	if len(more) > 0 && bytes.Contains([]byte(projectPages), append(append([]byte{' '}, page...), ' ')) {
		return append(to, "/{ref}"...)
	}
	return appendSegments(to, more)
}

// appendOwn folds the paths of Packhorse's pages. Those of files name the repository, a commit and a file.
func appendOwn(to, rest []byte) []byte {
	to = append(to, "/-"...)
	page, more, _ := bytes.Cut(rest, []byte("/"))
	to = appendSegment(append(to, '/'), page)
	if len(more) > 0 && (string(page) == "blob" || string(page) == "raw" || string(page) == "tree") {
		return append(to, "/{repo}/{ref}"...)
	}
	return appendSegments(to, more)
}

func appendSegments(to, rest []byte) []byte {
	for n := 1; len(rest) > 0; n++ {
		if n == maxSegments {
			return append(to, "/{...}"...)
		}
		segment, more, _ := bytes.Cut(rest, []byte("/"))
		to = appendSegment(append(to, '/'), segment)
		rest = more
	}
	return to
}

// appendSegment folds one segment of a path.
func appendSegment(to, s []byte) []byte {
	switch {
	case len(s) == 0:
		return to
	case isDigits(s):
		return append(to, "{id}"...)
	case isUUID(s):
		return append(to, "{uuid}"...)
	case looksRandomHex(s):
		return append(to, "{hash}"...)
	case bytes.Contains(s, []byte("%2F")), bytes.Contains(s, []byte("%2f")):
		return append(to, "{repo}"...)
	case len(s) > maxSegment, looksLikeToken(s):
		return append(to, "{token}"...)
	}
	for len(s) > 0 { // application-0a1b2c3d4e.js, report-20261101.csv
		n := 0
		for n < len(s) && isWordByte(s[n]) {
			n++
		}
		word := s[:n]
		switch {
		case n >= 3 && isDigits(word):
			to = append(to, "{id}"...)
		case looksRandomHex(word):
			to = append(to, "{hash}"...)
		default:
			to = append(to, word...)
		}
		if n < len(s) {
			to = append(to, s[n])
			n++
		}
		s = s[n:]
	}
	return to
}

func isWordByte(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

func isDigits(s []byte) bool {
	for _, c := range s {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(s) > 0
}

func isHexByte(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func isHex(s []byte) bool {
	for _, c := range s {
		if !isHexByte(c) {
			return false
		}
	}
	return true
}

// looksRandomHex reports whether a text is a hash and not a word: 5eedbed is a hash, feedbed is not.
func looksRandomHex(s []byte) bool {
	return len(s) >= 7 && isHex(s) && bytes.ContainsAny(s, "0123456789")
}

func isUUID(s []byte) bool {
	if len(s) != 36 {
		return false
	}
	for i, c := range s {
		if dash := i == 8 || i == 13 || i == 18 || i == 23; dash != (c == '-') || !dash && !isHexByte(c) {
			return false
		}
	}
	return true
}

// looksLikeToken reports whether a text is a long mixture of letters and digits, like base64.
func looksLikeToken(s []byte) bool {
	if len(s) < 16 {
		return false
	}
	digits, upper, lower := 0, 0, 0
	for _, c := range s {
		switch {
		case c >= '0' && c <= '9':
			digits++
		case c >= 'A' && c <= 'Z':
			upper++
		case c >= 'a' && c <= 'z':
			lower++
		case c == '_' || c == '-' || c == '=' || c == '+':
		default:
			return false
		}
	}
	return digits >= 2 && upper >= 2 && lower >= 2
}
