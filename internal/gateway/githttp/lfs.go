package githttp

import (
	"cmp"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs/wire"
)

// Git LFS's API (git-lfs, docs/api/README.md) is below "info/lfs" of a repository. Without LFS the answer is 404, which
// clients understand as "not implemented". 403, which other paths of the dumb protocol get, would mean wrong
// credentials.
const (
	lfsPath          = "/info/lfs/"
	lfsDocumentation = "https://github.com/packhorse-git/packhorse/blob/main/docs/reference/protocol.md#git-lfs"
)

// lfsRequest is the part of a request that belongs to Git LFS.
type lfsRequest struct {
	action    string        // an object (OID/SIZE) or "verify"; "": neither
	token     string        // value of the Authorization header with a token for Git LFS; "": none
	remaining time.Duration // until the token expires
}

// lfsRepository returns the path of the repository that a request of Git LFS is for, and the rest of the path.
func lfsRepository(path string) (repo, rest string, ok bool) {
	i := strings.LastIndex(path, lfsPath)
	if i < 0 {
		return "", "", false
	}
	return path[:i], path[i+len(lfsPath):], true
}

// serveLFS selects the handler for the rest of a path of Git LFS. Callers who may not read the repository get the same
// response as to a fetch.
func (q *request) serveLFS(repo, rest string) {
	object, isObject := strings.CutPrefix(rest, "objects/")
	q.lfs = &lfsRequest{}
	if isObject {
		q.lfs.action = object
	}
	if !q.repository(repo) {
		return
	}
	lock, isUnlock := strings.CutPrefix(strings.TrimSuffix(rest, "/unlock"), "locks/")
	switch {
	case q.LFS == nil:
		if q.may(auth.Read) {
			q.fail(gateway.ErrNoLFS)
		}
	case rest == "objects/batch":
		q.lfsBatch()
	case rest == "objects/verify":
		q.lfsVerify()
	case isObject:
		q.lfsObject(object)
	case rest == "locks" && q.r.Method != http.MethodPost:
		q.lfsListLocks()
	case rest == "locks":
		q.lfsLock()
	case rest == "locks/verify":
		q.lfsVerifyLocks()
	case isUnlock && strings.HasSuffix(rest, "/unlock"):
		q.lfsUnlock(lock)
	default:
		if q.mayLFS(auth.Read) {
			q.refuse(http.StatusNotFound, "Git LFS has no such path")
		}
	}
}

// Parameters of the URLs of actions.
const (
	lfsToken = "token" // of auth.LFSTokens.URLs
	lfsRef   = "ref"   // of the batch
)

// mayLFS determines the caller and whether they may perform an operation; if not, it responds. Besides other
// credentials it accepts tokens for Git LFS. A valid one in the URL wins over headers, which a client may send twice.
func (q *request) mayLFS(op auth.Operation) bool {
	if q.Auth == nil {
		return q.may(op)
	}
	repo := q.lfsRepo()
	if token := q.r.URL.Query().Get(lfsToken); token != "" {
		authorization, err := q.LFS.Tokens.Open(token, repo, op, q.lfs.action)
		switch {
		case err == nil:
			q.r.Header.Set("Authorization", authorization)
		case q.r.Header.Get("Authorization") == "":
			q.fail(err)
			return false
		}
	}
	id, remaining, ok, err := q.LFS.Tokens.Identify(q.r, repo)
	if !ok {
		return q.may(op)
	}
	q.w.Header().Add("Vary", "Authorization")
	q.ID = id
	q.lfs.token, q.lfs.remaining = q.r.Header.Get("Authorization"), remaining
	if err == nil {
		err = q.Authorize(op)
	}
	if err != nil {
		q.fail(err)
	}
	return err == nil
}

// lfsRepo returns the repository that tokens are for.
func (q *request) lfsRepo() git.RepoPath {
	if q.Rename != nil {
		return q.Rename(q.Repo)
	}
	return q.Repo
}

// lfsURL returns a URL below info/lfs of the repository, as the client can reach it.
func (q *request) lfsURL(rest string) string {
	base := url.URL{Scheme: "http", Host: cmp.Or(q.from.Host, q.r.Host)}
	if q.from.HTTPS {
		base.Scheme = "https"
	}
	repo, _, _ := lfsRepository(q.r.URL.Path) // as the client wrote it
	if q.LFS.URL != nil {
		base = *q.LFS.URL
		base.Path = strings.TrimSuffix(base.Path, "/")
	}
	base.Path += repo + lfsPath + rest
	return base.String()
}

// takesLFS reports whether the client accepts documents of Git LFS, and refuses the request otherwise.
func (q *request) takesLFS() bool {
	accept := q.r.Header.Values("Accept")
	if len(accept) == 0 {
		return true
	}
	for _, list := range accept {
		for one := range strings.SplitSeq(list, ",") {
			switch kind, _, _ := strings.Cut(strings.TrimSpace(one), ";"); strings.ToLower(kind) {
			case wire.MediaType, "application/*", "*/*":
				return true
			}
		}
	}
	q.refuse(http.StatusNotAcceptable, "the response has the type "+wire.MediaType+": accept it")
	return false
}

// isLFSDocument reports whether the request is a POST of a document of Git LFS, and refuses it otherwise.
func (q *request) isLFSDocument() bool {
	if !q.method(http.MethodPost) || !q.takesLFS() {
		return false
	}
	kind, _, err := mime.ParseMediaType(q.r.Header.Get("Content-Type"))
	if err != nil || kind != wire.MediaType {
		q.refuse(http.StatusUnsupportedMediaType, "bad content type; a client of Git LFS sends "+wire.MediaType)
		return false
	}
	return true
}

// readLFS reads the document of a short request into v; if it cannot, it responds.
func (q *request) readLFS(v any) bool {
	body, err := q.readBody()
	if err == nil {
		defer body.Close()
		err = wire.Read(body, v)
	}
	if err != nil {
		q.fail(err)
	}
	return err == nil
}

// lfsVerify answers a request to verify an upload (docs/api/basic-transfers.md). Uploads are complete and durable when
// their response is sent, so that it only looks whether the repository has the object.
func (q *request) lfsVerify() {
	q.Op = gateway.LFSVerify
	if !q.isLFSDocument() || !q.mayLFS(auth.Write) {
		return
	}
	var document wire.Object
	if !q.readLFS(&document) {
		return
	}
	object, err := document.Parse()
	if err == nil {
		q.FindLFS(object, nil)
		err = q.Err
	}
	if err != nil {
		q.fail(err)
		return
	}
	q.json(http.StatusOK, wire.MediaType, document)
}

// errHash is the error of a request with another hash algorithm.
var errHash = fault.New(fault.Invalid, "only the hash algorithm %s is supported", wire.SHA256)

// lfsStatus returns the status of an error of a request of Git LFS (docs/api/batch.md, "Response Errors").
func lfsStatus(err error) int {
	switch {
	case errors.Is(err, wire.ErrTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, errHash):
		return http.StatusConflict
	case fault.Is(err, fault.Invalid):
		return http.StatusUnprocessableEntity
	}
	return gateway.StatusOf(fault.KindOf(err))
}

// lfsError sends an error document of Git LFS (docs/api/batch.md, "Response Errors").
func (q *request) lfsError(status int, message string) {
	header := q.w.Header()
	if challenge := header.Get("WWW-Authenticate"); challenge != "" {
		header.Set("LFS-Authenticate", challenge)
	}
	q.json(status, wire.MediaType, wire.Error{Message: message, Documentation: lfsDocumentation,
		RequestID: q.RequestID()})
}
