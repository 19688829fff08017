package compare

import (
	"bytes"
	"fmt"
	"strings"
)

// Bounds of a route's name.
const (
	maxSegments   = 10
	maxSegment    = 48
	maxRouteBytes = 200
)

// Pattern is a path whose segments may be "*", any one, and whose last may be "**", all that follows. It names the
// route of all paths that it fits.
type Pattern struct {
	text     string
	segments []string
}

// ParsePattern reads a pattern like /users/*/avatar or /assets/**.
func ParsePattern(text string) (Pattern, error) {
	rest, absolute := strings.CutPrefix(text, "/")
	segments := strings.Split(rest, "/")
	for i, s := range segments {
		if s == "**" && i < len(segments)-1 {
			return Pattern{}, fmt.Errorf("the route pattern %q has ** before its end", text)
		}
	}
	if !absolute || len(text) > maxRouteBytes {
		return Pattern{}, fmt.Errorf("the route pattern %q is no path like /users/*/avatar or /assets/** of at most %d bytes",
			text, maxRouteBytes)
	}
	return Pattern{text, segments}, nil
}

// fits takes a path without its first slash.
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

// Where a repository's name ends in paths of git clients (gitprotocol-http(5), and git-lfs's).
var gitEndings = [][]byte{[]byte("/info/refs"), []byte("/git-upload-pack"), []byte("/git-receive-pack"),
	[]byte("/info/lfs/"), []byte("/objects/"), []byte("/HEAD")}

// appendRoute appends the route that a request's target belongs to: its path, in which what differs from request to
// request is folded. Numbers become {id}, hexadecimal ones {hash}, UUIDs {uuid}, repositories {repo}, revisions and
// files in them {ref}, what looks random {token}. target is as the client sent it.
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

// pathOf drops the query, and the scheme and host of a target in absolute form. What is left begins with a slash.
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

// gitRest is what follows a repository in the path of a git client.
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

// isObject tells objects of dumb clients (gitprotocol-http(5), "Dumb Clients") from other things of that name.
func isObject(rest []byte) bool {
	return bytes.HasPrefix(rest, []byte("info/")) || bytes.HasPrefix(rest, []byte("pack/")) || len(rest) > 3 &&
		rest[2] == '/' && isHex(rest[:2])
}

// projectPages are pages of a project, as GitLab writes their paths after "/-/", that go on with a revision and a file.
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

// appendOwn folds our own pages: those of files name the repository, a commit and a file.
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

// looksRandomHex tells an abbreviated or whole hash from a word: feedbed is one, 5eedbed is not.
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

// looksLikeToken tells long mixtures of letters and digits, as base64 makes them, from names.
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
