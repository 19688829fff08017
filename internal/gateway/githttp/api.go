package githttp

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/rest"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

const openAPIPath = "/-/api/v1/openapi.json"

// openAPI sends the description of the API.
func (q *request) openAPI() {
	q.Op = gateway.API
	if q.method(http.MethodGet) {
		q.w.Header().Set("X-Content-Type-Options", "nosniff")
		q.send(http.StatusOK, typeJSON, append(rest.Encode(rest.OpenAPI()), '\n'))
	}
}

// apiRequest is a request for the API of repositories.
type apiRequest struct {
	*request
	*rest.Request
	message   proto.Message
	reachable string // see node.Call
	seat      *admit.Seat
	memory    admit.Holding // of the body and of a document
	etag      string        // of the response; "": not known before it
	immutable bool          // full object IDs determine the response
}

// api answers a request for the API of repositories: METHOD /-/api/v1/repos/REPOSITORY/KEYWORD/...
func (q *request) api() {
	q.Op = gateway.API
	path, _ := strings.CutPrefix(q.r.URL.EscapedPath(), rest.Prefix)
	found, methods, err := rest.Find(q.r.Method, path)
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
	op := auth.Read
	if found.Writes {
		q.Op, op = gateway.APIChange, auth.Write
	}
	if !q.repository(found.Repository) {
		return
	}
	// A browser sends the password that its user has entered with requests of all pages.
	if new(http.CrossOriginProtection).Check(q.r) != nil {
		q.fail(fault.New(fault.Denied, "requests of other web pages cannot change anything"))
		return
	}
	if !q.may(op) {
		return
	}
	a := &apiRequest{request: q, Request: found, memory: q.Memory.Hold(q.Caller(), freeHook)}
	defer func() { a.memory.Shrink(0) }()
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
	if err = a.prepare(body); err != nil {
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
	size := a.r.ContentLength
	if size < 0 || a.r.Header.Get("Content-Encoding") != "" {
		size = gateway.MaxAPIBody
	}
	err := error(nil)
	if size <= gateway.MaxAPIBody {
		if err = a.memory.Grow(size); err == nil {
			text, err = a.readWhole()
		}
	}
	switch {
	case err != nil:
		a.fail(err)
	case size > gateway.MaxAPIBody || len(text) > gateway.MaxAPIBody:
		a.refuse(http.StatusRequestEntityTooLarge, "the body is longer than 8 MiB; push larger changes with git")
	default:
		return text, true
	}
	return nil, false
}

func (a *apiRequest) readWhole() ([]byte, error) {
	body, err := a.readBody()
	if err != nil {
		return nil, err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if fault.KindOf(err) == fault.Internal {
		err = fault.Wrap(fault.Invalid, "the request's body was cut off or took too long", err)
	}
	return text, err
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
	if len(revisions) > 0 {
		a.etag = etagOf(append(revisions, a.r.URL.EscapedPath(), a.r.URL.RawQuery, a.r.Header.Get("Accept"))...)
	}
	// objects that names have led to need no check
	a.reachable = strings.Join(append([]string{a.Reachable()}, named...), " ")
	if a.message, err = a.Message(revisions, chosen, query, body); err != nil {
		return err
	}
	if a.Writes {
		a.SetCaller(a.message, a.ID.Name, gateway.HostOf(a.Client))
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

// ask has a node answer the call of the request. receive gets each message of the response.
func (a *apiRequest) ask(receive func([]byte) error) {
	a.request.Call(node.Call{Procedure: a.Procedure(), Reachable: a.reachable}, a.Writes,
		func(repo git.RepoPath) []byte { return a.Encode(a.message, repo.String()) }, receive)
}

// isCurrent reports whether the client has the response of a tag already, which is then the response.
func (a *apiRequest) isCurrent(tag string) bool {
	for sent := range strings.SplitSeq(strings.Join(a.r.Header["If-None-Match"], ","), ",") {
		if sent = strings.TrimSpace(sent); sent == "*" || strings.TrimPrefix(sent, "W/") == tag {
			a.header(tag)
			a.begin(http.StatusNotModified)
			return true
		}
	}
	return false
}

// header sets the header of a successful response.
func (a *apiRequest) header(tag string) {
	h := a.w.Header()
	h.Del("Expires")
	h.Del("Pragma")
	h.Set("Cache-Control", "private, no-cache")
	if a.immutable {
		h.Set("Cache-Control", "private, max-age=31536000, immutable")
	}
	if a.r.Method != http.MethodGet && a.r.Method != http.MethodHead {
		h.Set("Cache-Control", "private, no-store")
	} else if tag != "" {
		h.Set("ETag", tag)
	}
	h.Add("Vary", "Accept")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
}

// apiError sends Err to a client of the API.
func (q *request) apiError(status int, message string) {
	problem := rest.NewError(q.Err)
	problem["message"] = message
	q.w.Header().Set("X-Content-Type-Options", "nosniff")
	q.send(status, typeJSON, append(rest.Encode(rest.Object{"error": problem}), '\n'))
}
