package compare

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/operations/accesslog"
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
	text  string
	match *regexp.Regexp
}

// ParsePattern parses a pattern like /users/*/avatar or /assets/**.
func ParsePattern(text string) (Pattern, error) {
	segments := strings.Split(text, "/")
	for i, s := range segments {
		switch {
		case s == "**" && i < len(segments)-1:
			return Pattern{}, fmt.Errorf("route pattern %q: ** must be at the end", text)
		case s == "**":
			segments[i] = ".*"
		case s == "*":
			segments[i] = "[^/]+"
		default:
			segments[i] = regexp.QuoteMeta(s)
		}
	}
	if !strings.HasPrefix(text, "/") || len(text) > maxRouteBytes {
		return Pattern{}, fmt.Errorf("route pattern %q: want a path like /users/*/avatar or /assets/** of at most %d bytes",
			text, maxRouteBytes)
	}
	return Pattern{text, regexp.MustCompile("^(?s:" + strings.Join(segments, "/") + ")$")}, nil
}

// routeOf returns the route of a request, or "" if an answered request has no path.
func routeOf(e *accesslog.Entry, byOperation bool, patterns []Pattern) string {
	operation := e.Fields["operation"]
	if operation != "" && (e.Target == "" || byOperation) {
		return ownRoute(e.Fields, byOperation)
	}
	if e.Target == "" {
		if e.Status < 400 {
			return ""
		}
		return "(no request)"
	}
	path := pathOf(e.Target)
	if byOperation {
		return operationOf(e.Method, path)
	}
	method := e.Method
	if !slices.Contains([]string{"GET", "POST", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "CONNECT",
		"TRACE"}, method) {
		method = "{method}"
	}
	for _, p := range patterns {
		if p.match.MatchString(path) {
			return method + " " + p.text
		}
	}
	name := foldPath(path)
	if len(name) > maxRouteBytes {
		name = name[:maxRouteBytes-3] + "..."
	}
	return method + " " + name
}

// ownRoute returns the route of a line of Packhorse's log, in which requests of git clients have no path.
func ownRoute(fields map[string]string, byOperation bool) string {
	operation := fields["operation"][:min(len(fields["operation"]), maxSegment)]
	isRead := slices.Contains([]string{"ls_refs", "fetch", "object_info", "bundle_uri", "info_refs"}, operation)
	switch {
	case byOperation && operation == "fetch" && fields["pack"] == "":
		return "negotiate"
	case byOperation && operation == "fetch" && (fields["haves"] == "" || fields["haves"] == "0"):
		return "clone"
	case byOperation:
		return operation
	case operation == "info_refs" && fields["transport"] != "ssh":
		return "GET /{repo}/info/refs"
	}
	name := "POST /{repo}/"
	if fields["transport"] == "ssh" {
		name = "SSH /{repo}/"
	}
	switch {
	case operation == "push":
		return name + "git-receive-pack"
	case isRead:
		return name + "git-upload-pack"
	}
	return name + operation
}

// operationOf returns the operation of a path, with the name of Packhorse's log. A path does not distinguish the
// kinds of requests to upload-pack.
func operationOf(method, path string) string {
	switch {
	case strings.HasSuffix(path, "/info/refs"):
		return "info_refs"
	case method == "POST" && strings.HasSuffix(path, "/git-upload-pack"):
		return "upload-pack"
	case method == "POST" && strings.HasSuffix(path, "/git-receive-pack"):
		return "push"
	case strings.HasPrefix(path, "/-/api/v1/search"), strings.HasPrefix(path, "/.api/"):
		return "search"
	case strings.HasPrefix(path, "/-/api/v1/resolve"):
		return "resolve"
	case strings.HasPrefix(path, "/-/"):
		return "page"
	}
	return otherRoute
}

// pathOf removes the query, and the scheme and host of a target in absolute form. The result begins with a slash.
func pathOf(target string) string {
	if i := strings.IndexAny(target, "?#"); i >= 0 {
		target = target[:i]
	}
	if strings.HasPrefix(target, "/") {
		return target
	}
	if _, rest, ok := strings.Cut(target, "://"); ok {
		_, rest, _ = strings.Cut(rest, "/")
		return "/" + rest
	}
	return "/" + target
}

var (
	// The end of a path after a repository's name (gitprotocol-http(5), and git-lfs).
	gitPath = regexp.MustCompile(`^/.+?(?:\.git)?(/(?:info/refs|git-upload-pack|git-receive-pack|HEAD|info/lfs/.*|` +
		`objects/(?:info|pack|[0-9a-f]{2})/.*)|\.git(?:/.*)?)$`)
	// A page of Packhorse of a repository, a revision and a file.
	ownPage = regexp.MustCompile(`^/-/(blob|raw|tree)/.`)
	// A page of a project in GitLab, some of which continue with a revision and a file.
	projectPage = regexp.MustCompile(`^/.+?/-/(?:((?:blob|tree|raw|blame|commits|find_file|archive|compare|network|` +
		`graphs|refs|edit|create|file|preview)/).+|(.*))$`)
)

// foldPath replaces the variable parts of a path: numbers become {id}, hexadecimal ones {hash}, UUIDs {uuid},
// repositories {repo}, revisions and files in them {ref}, and random text {token}.
func foldPath(path string) string {
	prefix := ""
	if m := ownPage.FindStringSubmatch(path); m != nil {
		return "/-/" + m[1] + "/{repo}/{ref}"
	} else if m := gitPath.FindStringSubmatch(path); m != nil && !strings.HasPrefix(path, "/-/") {
		prefix, path = "/{repo}", strings.TrimPrefix(m[1], ".git")
	} else if m := projectPage.FindStringSubmatch(path); m != nil && m[1] != "" {
		return "/{repo}/-/" + m[1] + "{ref}"
	} else if m != nil {
		prefix, path = "/{repo}/-", "/"+m[2]
	}
	if path == "" {
		return prefix
	}
	segments := strings.Split(path[1:], "/")
	if len(segments) > maxSegments {
		segments = append(segments[:maxSegments], "{...}")
	}
	for i, s := range segments {
		if s != "{...}" || i < maxSegments {
			segments[i] = foldSegment(s)
		}
	}
	return prefix + "/" + strings.Join(segments, "/")
}

var (
	digits   = regexp.MustCompile(`^[0-9]+$`)
	uuid     = regexp.MustCompile(`^[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$`)
	longHex  = regexp.MustCompile(`^[0-9a-fA-F]{7,}$`)
	slash    = regexp.MustCompile(`%2[Ff]`)
	token    = regexp.MustCompile(`^[0-9A-Za-z_=+-]{16,}$`)
	wordPart = regexp.MustCompile(`[0-9A-Za-z]+`)
)

// foldSegment folds one segment of a path. A hash has a digit: 5eedbed is one, feedbed is a word.
func foldSegment(s string) string {
	isHash := func(s string) bool { return longHex.MatchString(s) && strings.ContainsAny(s, "0123456789") }
	switch {
	case digits.MatchString(s):
		return "{id}"
	case uuid.MatchString(s):
		return "{uuid}"
	case isHash(s):
		return "{hash}"
	case slash.MatchString(s):
		return "{repo}"
	case len(s) > maxSegment, token.MatchString(s) && isMixed(s):
		return "{token}"
	}
	return wordPart.ReplaceAllStringFunc(s, func(word string) string { // application-0a1b2c3d4e.js, report-20261101.csv
		switch {
		case len(word) >= 3 && digits.MatchString(word):
			return "{id}"
		case isHash(word):
			return "{hash}"
		}
		return word
	})
}

// isMixed reports whether a text has at least two digits, two capital and two small letters, as random text has.
func isMixed(s string) bool {
	var n [3]int
	for _, c := range s {
		switch {
		case c >= '0' && c <= '9':
			n[0]++
		case c >= 'A' && c <= 'Z':
			n[1]++
		case c >= 'a' && c <= 'z':
			n[2]++
		}
	}
	return min(n[0], n[1], n[2]) >= 2
}
