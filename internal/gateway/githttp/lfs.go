package githttp

import (
	"net/http"
	"strings"

	"github.com/packhorse-git/packhorse/internal/auth"
)

// Git LFS's API (git-lfs, docs/api/README.md) is below "info/lfs" of a repository. Packhorse does not support LFS.
// Clients understand 404 as "not implemented" and continue without it. 403, which other paths of the dumb protocol get,
// would mean wrong credentials.
const (
	lfsPath          = "/info/lfs/"
	lfsType          = "application/vnd.git-lfs+json"
	lfsDocumentation = "https://github.com/packhorse-git/packhorse/blob/main/docs/reference/protocol.md#git-lfs"
)

// lfsRepository returns the path of the repository that a request of Git LFS is for.
func lfsRepository(path string) (repo string, ok bool) {
	i := strings.LastIndex(path, lfsPath)
	if i < 0 {
		return "", false
	}
	return path[:i], true
}

// noLFS answers a request of Git LFS. Callers who may not read the repository get the same response as to a fetch.
func (q *request) noLFS(path string) {
	q.isLFS = true
	if q.repository(path) && q.may(auth.Read) {
		q.refuse(http.StatusNotFound, "Git LFS is not supported by this server")
	}
}

// lfsError sends an error document of Git LFS (docs/api/batch.md, "Response Errors").
func (q *request) lfsError(status int, message string) {
	header := q.w.Header()
	if challenge := header.Get("WWW-Authenticate"); challenge != "" {
		header.Set("LFS-Authenticate", challenge)
	}
	q.json(status, lfsType, struct {
		Message       string `json:"message"`
		Documentation string `json:"documentation_url"`
		Request       string `json:"request_id,omitempty"`
	}{message, lfsDocumentation, q.RequestID()})
}
