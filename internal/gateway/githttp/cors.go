package githttp

import (
	"net/http"
	"slices"
	"strings"
)

// Headers of CORS (Fetch standard, section 3.3).
const (
	corsHeaders = "Accept, Accept-Language, Authorization, Cache-Control, Content-Encoding, Content-Type, Git-Protocol, " +
		"Pragma, Range, User-Agent" // of requests
	corsExposed = "Content-Range, Retry-After, WWW-Authenticate, " + stalenessHeader // of responses

	corsMaxAge = "7200" // seconds for which a browser remembers the answer to a preflight; Chromium limits it to this
)

// cors permits a request for Git or Git LFS of a script from one of CORSOrigins, and reports whether the request is a
// preflight, which it answers. Scripts from other origins get the responses that other clients get, which the browser
// hides from them.
func (q *request) cors(path string) (answered bool) {
	origins := q.handler.CORSOrigins
	_, _, isLFS := lfsRepository(path)
	if len(origins) == 0 || !isLFS && !isSmart(path) {
		return false
	}
	header := q.w.Header()
	header.Add("Vary", "Origin")
	origin := q.r.Header.Get("Origin")
	switch {
	case origin == "":
		return false
	case origins[0] == "*":
		header.Set("Access-Control-Allow-Origin", "*") // browsers refuse credentials of their own with it
	case slices.Contains(origins, origin):
		header.Set("Access-Control-Allow-Origin", origin)
		header.Set("Access-Control-Allow-Credentials", "true")
	default:
		return false
	}
	if q.r.Method != http.MethodOptions || q.r.Header.Get("Access-Control-Request-Method") == "" {
		header.Set("Access-Control-Expose-Headers", corsExposed)
		return false
	}
	methods := "GET, HEAD, POST"
	if isLFS {
		methods += ", PUT"
	}
	header.Set("Access-Control-Allow-Methods", methods)
	header.Set("Access-Control-Allow-Headers", corsHeaders)
	header.Set("Access-Control-Max-Age", corsMaxAge)
	q.begin(http.StatusNoContent)
	return true
}

// isSmart reports whether a path is one of Git's smart protocol.
func isSmart(path string) bool {
	return strings.HasSuffix(path, "/info/refs") || strings.HasSuffix(path, "/git-upload-pack") ||
		strings.HasSuffix(path, "/git-receive-pack")
}
