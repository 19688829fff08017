package gateway

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/packhorse-git/packhorse/internal/auth"
)

// Git LFS's API (git-lfs, docs/api/README.md) is below "info/lfs" of a repository. There is no LFS here. Clients take 404 for "not implemented"
// and go on without it; 403, as for other paths of the dumb protocol, would be wrong credentials to them.
const (
	lfsPath          = "/info/lfs/"
	lfsType          = "application/vnd.git-lfs+json"
	lfsDocumentation = "https://github.com/packhorse-git/packhorse/blob/main/docs/reference/protocol.md#git-lfs"
)

// lfsRepository returns the path of the repository that a request of Git LFS's API is for.
func lfsRepository(path string) (repo string, ok bool) {
	i := strings.LastIndex(path, lfsPath)
	if i < 0 {
		return "", false
	}
	return path[:i], true
}

// noLFS answers a request of Git LFS's API. Who may not read the repository is told what it would be told anywhere.
func (e *exchange) noLFS(path string) {
	e.isLFS = true
	if e.repository(path) && e.may(auth.Read) {
		e.refuse(http.StatusNotFound, "Git LFS is not supported by this server")
	}
}

// lfsError answers with an error document of Git LFS (docs/api/batch.md, "Response Errors").
func (e *exchange) lfsError(status int, message string) {
	header := e.w.Header()
	header.Set("Content-Type", lfsType)
	header.Set("X-Content-Type-Options", "nosniff")
	if challenge := header.Get("WWW-Authenticate"); challenge != "" {
		header.Set("LFS-Authenticate", challenge)
	}
	text, err := json.Marshal(struct {
		Message       string `json:"message"`
		Documentation string `json:"documentation_url"`
		Request       string `json:"request_id,omitempty"`
	}{message, lfsDocumentation, e.running.ID()})
	if err != nil {
		panic(err) // strings alone
	}
	e.begin(status)
	e.write(append(text, '\n'))
}
