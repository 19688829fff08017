package githttp

import (
	"crypto/sha256"
	"encoding/hex"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/rest"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// openAPI sends the description of the API.
func (q *request) openAPI() {
	q.Op = gateway.API
	if q.method(http.MethodGet) {
		q.json(http.StatusOK, typeJSON, rest.OpenAPI())
	}
}

// apiRequest is a request for the API of repositories.
type apiRequest struct {
	*request
	*rest.Request
	message   proto.Message
	reachable string       // see node.Call
	created   git.RepoPath // that a change other than Create makes; zero: none
	seat      *admit.Seat
	memory    admit.Holding // of the body and of a document
	etag      string        // of the response; "": not known before it
	public    bool          // etag is known, and all revisions are those of refs that the caller may read
	immutable bool          // full object IDs determine the response
}

// api answers a request for the API of repositories: METHOD /-/api/v1/repos/REPOSITORY/KEYWORD/...
func (q *request) api() {
	q.Op = gateway.API
	path := strings.TrimPrefix(q.r.URL.EscapedPath(), strings.TrimSuffix(rest.Prefix, "/"))
	found, methods, err := rest.Find(q.r.Method, strings.TrimPrefix(path, "/"))
	switch {
	case err != nil:
		q.fail(err)
		return
	case methods != nil:
		q.w.Header().Set("Allow", strings.Join(methods, ", "))
		q.refuse(http.StatusMethodNotAllowed, "use "+strings.Join(methods, " or "))
		return
	}
	if found.Form == rest.File {
		q.archive(found.Repository, found.Argument())
		return
	}
	if found.IsChange() {
		q.Op = gateway.APIChange
	}
	if !found.ForAll && !q.repository(found.Repository) {
		return
	}
	// A browser sends the password that its user has entered with requests of all pages.
	if new(http.CrossOriginProtection).Check(q.r) != nil {
		q.fail(fault.New(fault.Denied, "requests of other web pages cannot change anything"))
		return
	}
	if !found.ForAll && !q.may(found.Needs) {
		return
	}
	a := &apiRequest{request: q, Request: found, memory: q.Memory.Hold(q.Caller(), freeHook)}
	defer func() { a.memory.Shrink(0) }()
	if found.ForAll {
		if err = q.identify(); err != nil {
			q.fail(err)
			return
		}
	}
	body, ok := a.readDocument()
	if !ok {
		return
	}
	if a.seat, err = q.Enter(); err != nil {
		q.fail(err)
		return
	}
	defer a.seat.Leave()
	q.Publish()
	q.At(inflight.Working)
	if err = a.prepare(body); err == nil && found.IsAdministration() {
		err = a.administration()
	}
	if err != nil {
		q.fail(err)
		return
	}
	a.answer()
}

// readDocument reads the body. After a false result the client has its response.
func (a *apiRequest) readDocument() (text []byte, ok bool) {
	if a.r.Body == http.NoBody {
		return nil, true
	}
	kind, _, _ := mime.ParseMediaType(a.r.Header.Get("Content-Type"))
	// the type that curl -d announces is accepted for JSON, too
	if kind != "" && kind != typeJSON && kind != "application/x-www-form-urlencoded" {
		a.refuse(http.StatusUnsupportedMediaType, "bad content type: send JSON as "+typeJSON)
		return nil, false
	}
	var err error
	if a.r.ContentLength <= gateway.MaxAPIBody {
		text, err = a.readWhole(&a.memory)
	}
	switch {
	case err != nil:
		a.fail(err)
	case max(a.r.ContentLength, int64(len(text))) > gateway.MaxAPIBody:
		a.refuse(http.StatusRequestEntityTooLarge, "the body is longer than 8 MiB; push larger changes with git")
	default:
		return text, true
	}
	return nil, false
}

// prepare resolves the revisions of the path, and makes the message of the request.
func (a *apiRequest) prepare(body []byte) error {
	query, err := url.ParseQuery(a.r.URL.RawQuery)
	if err != nil {
		return fault.New(fault.Invalid, "bad query")
	}
	alternatives, err := a.Revisions()
	if err != nil {
		return err
	}
	revisions, named, chosen, err := a.resolveAll(alternatives)
	if err != nil {
		return err
	}
	switch {
	case len(body) > 0, query.Has("exclude"), query.Has("from"), query.Has("ignore_revisions"): // they can have names
		a.immutable = false
	case len(revisions) > 0:
		a.public = len(named) == len(revisions)
		a.etag = etagOf(append(revisions, a.r.URL.EscapedPath(), a.r.URL.RawQuery, a.r.Header.Get("Accept"))...)
	}
	// objects that names have led to need no check
	a.reachable = strings.Join(append([]string{a.Reachable()}, named...), " ")
	if a.message, err = a.Message(revisions, chosen, query, body); err != nil {
		return err
	}
	if a.IsChange() {
		a.SetCaller(a.message, a.ID.Name, gateway.HostOf(a.Client), a.RefRules.Message())
	}
	return nil
}

// resolveAll resolves revisions, of which each has alternatives. chosen is the index of the alternative of the first
// one, and named are the results that a ref has led to.
func (a *apiRequest) resolveAll(alternatives [][]string) (ids, named []string, chosen int, err error) {
	if len(alternatives) == 0 {
		return nil, nil, 0, nil
	}
	results, err := a.request.Revisions(slices.Concat(alternatives...))
	if err != nil {
		return nil, nil, 0, err
	}
	a.immutable = true
	for i, texts := range alternatives {
		best := -1
		for k, result := range results[:len(texts)] {
			if result.Err == nil {
				best = k
			} else if !fault.Is(result.Err, fault.NotFound) && !fault.Is(result.Err, fault.Invalid) {
				return nil, nil, 0, result.Err
			}
		}
		if best < 0 {
			return nil, nil, 0, results[0].Err
		}
		if i == 0 {
			chosen = best
		}
		id := results[best].ID.String()
		ids = append(ids, id)
		a.immutable = a.immutable && texts[best] == id
		if results[best].Ref != "" {
			named = append(named, id)
		}
		results = results[len(texts):]
	}
	return ids, named, chosen, nil
}

// etagOf returns the tag of a response that texts determine.
func etagOf(texts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))
	return `"` + hex.EncodeToString(sum[:16]) + `"`
}

// isCurrent reports whether the client has the response already, which is then the response.
func (a *apiRequest) isCurrent() bool {
	for sent := range strings.SplitSeq(strings.Join(a.r.Header["If-None-Match"], ","), ",") {
		if strings.TrimPrefix(strings.TrimSpace(sent), "W/") == a.etag {
			a.header()
			a.begin(http.StatusNotModified)
			return true
		}
	}
	return false
}

// header sets the header of a successful response.
func (a *apiRequest) header() {
	h := a.w.Header()
	h.Del("Expires")
	h.Del("Pragma")
	switch {
	case !a.isRead() || a.IsEvents():
		h.Set("Cache-Control", "private, no-store")
	case a.immutable:
		h.Set("Cache-Control", "private, max-age=31536000, immutable")
	default:
		h.Set("Cache-Control", "private, no-cache")
	}
	if a.isRead() && a.etag != "" {
		h.Set("ETag", a.etag)
	}
	h.Add("Vary", "Accept")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
}

// apiError sends Err to a client of the API.
func (q *request) apiError(status int, message string) {
	problem := rest.NewError(q.Err)
	problem["message"] = strings.ToValidUTF8(message, "\ufffd")
	q.json(status, typeJSON, rest.Object{"error": problem})
}
