package githttp

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/rest"
	"github.com/packhorse-git/packhorse/internal/gateway/web/legacy"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
)

// identify determines the caller.
func (q *request) identify() (err error) {
	if q.Auth == nil {
		return nil
	}
	q.w.Header().Add("Vary", "Authorization")
	q.Reidentify = func(ctx context.Context) (auth.Identity, error) { return q.Auth.HTTP(q.r.WithContext(ctx)) }
	q.ID, err = q.Auth.HTTP(q.r)
	return err
}

// authorize determines the caller and whether they may perform an operation.
func (q *request) authorize(op auth.Operation) error {
	if err := q.identify(); err != nil {
		return err
	}
	return q.Authorize(op)
}

// may is authorize, but responds if the caller may not.
func (q *request) may(op auth.Operation) bool {
	err := q.authorize(op)
	if err != nil {
		q.fail(err)
	}
	return err == nil
}

// keepPrivate prevents caches and browsers from storing a response for an authenticated caller (RFC 9111, sections 3.5
// and 5.2.2). Responses to git do not need it: they say no-cache, as git's own do, and no browser requests them.
func (q *request) keepPrivate() {
	if !q.ID.Anonymous() {
		q.w.Header().Set("Cache-Control", "private, no-store")
	}
}

// fail responds to a request that failed before its response began: with a status, or with an ERR packet if git would
// not show the message of a status.
func (q *request) fail(err error) {
	if q.moved(err) {
		return
	}
	q.Err = err
	kind := fault.KindOf(err)
	status := q.advise(err)
	q.w.Header().Del("Content-Length")
	if refusal := httpguard.RefusedIn(q.r.Context()); refusal != nil { // it is not valid HTTP, whatever it contains
		q.malformed(refusal)
		return
	}
	parsed := q.Outcome.Command != ""
	if q.Op.InGit && (kind == fault.Invalid ||
		parsed && (kind == fault.Denied || kind == fault.NotFound || kind == fault.Corrupt || kind == fault.Internal)) {
		q.send(http.StatusOK, typeUploadPackResult, protocol.AppendError(nil, fault.Message(err)))
		return
	}
	q.text(status, fault.Message(err))
}

// moved redirects the first request of a session with a repository at an address of cgit or gitweb, unless there is one
// at that path. Git follows it, and sends later requests to the new address.
func (q *request) moved(err error) bool {
	to, program := legacy.Below(q.r.URL.Path)
	needsName := fault.Is(err, fault.Unauthenticated)
	if program == "" || q.Op != gateway.Advertise || !needsName && !fault.Is(err, fault.NotFound) {
		return false
	}
	if needsName { // not if callers may read the other one without a name
		q.Repo, err = gateway.ParseRepo(strings.TrimSuffix(to, "/info/refs"))
		if err != nil || q.Authorize(auth.Read) != nil {
			return false
		}
	}
	q.Err = nil
	q.w.Header().Del("Content-Type")
	q.w.Header().Set("Location", (&url.URL{Path: to, RawQuery: q.r.URL.RawQuery}).String())
	q.begin(http.StatusMovedPermanently)
	return true
}

// malformed responds to a request whose body was refused.
func (q *request) malformed(refusal *httpguard.Refusal) {
	q.Err, q.Result = refusal, fault.Invalid.String() // whatever else failed because of it
	q.Outcome.Reason = refusal.Reason
	q.w.Header().Set("Connection", "close")
	q.text(refusal.Status, refusal.Error())
}

// advise sets the headers that help the client after an error, and returns the error's status.
func (q *request) advise(err error) (status int) {
	status = gateway.StatusOf(fault.KindOf(err))
	if q.lfs != nil {
		status = lfsStatus(err)
	}
	after := fault.RetryAfter(err)
	if after > 0 || status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
		q.w.Header().Set("Retry-After", fault.RetryHeader(after))
	}
	if status == http.StatusUnauthorized { // git asks its credential helpers and tries again; caches must not keep it
		q.w.Header().Set("WWW-Authenticate", `Basic realm="packhorse", charset="UTF-8"`)
		q.w.Header().Set("Cache-Control", "no-store")
	}
	return status
}

// refuse responds to a request that is not valid here.
func (q *request) refuse(status int, message string) {
	q.Err = fault.New(fault.Invalid, "%s", message)
	q.text(status, message)
}

// text sends a message, which git shows after "remote:".
func (q *request) text(status int, message string) {
	switch {
	case q.Op == gateway.Search && q.wantsEvents():
		q.failEvents(status, message)
	case q.lfs != nil:
		q.lfsError(status, message)
	case q.Op == gateway.API, q.Op == gateway.APIChange, strings.HasPrefix(q.r.URL.Path+"/", rest.Prefix):
		q.apiError(status, message)
	default:
		q.w.Header().Set("X-Content-Type-Options", "nosniff")
		q.send(status, "text/plain; charset=utf-8", []byte(message+"\n"))
	}
}

const typeJSON = "application/json"

// json sends a JSON document.
func (q *request) json(status int, contentType string, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		q.fail(err)
		return
	}
	q.w.Header().Set("X-Content-Type-Options", "nosniff")
	q.send(status, contentType, append(text, '\n'))
}

// send sends a whole response.
func (q *request) send(status int, contentType string, p []byte) {
	q.w.Header().Set("Content-Type", contentType)
	q.begin(status)
	n, err := q.w.Write(p)
	q.Sent(n)
	if q.Err == nil {
		q.Err = err
	}
}
