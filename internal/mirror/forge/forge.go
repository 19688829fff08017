// Package forge receives the webhooks with which forges announce pushes: GitHub, GitLab, Gitea, Forgejo and Bitbucket.
//
// A delivery only names a repository. Its refs are read from the origin, so that a forged or repeated delivery can at
// most cause one more check of the origin. Receiver verifies deliveries and refreshes mirrors in the background.
package forge

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Kind is a kind of forge, as in the path of its webhooks.
type Kind string

// The kinds of forges. Bitbucket is Bitbucket Cloud, Server and Data Center.
const (
	GitHub    Kind = "github"
	GitLab    Kind = "gitlab"
	Gitea     Kind = "gitea"
	Forgejo   Kind = "forgejo"
	Bitbucket Kind = "bitbucket"
)

// Kinds lists all kinds.
var Kinds = []Kind{GitHub, GitLab, Gitea, Forgejo, Bitbucket}

// tokenHeader is the header with the secret of GitLab's webhooks. The other forges sign the body.
const tokenHeader = "X-Gitlab-Token"

// proof returns the proof of a delivery in its header: the hexadecimal HMAC-SHA256 of the body, or the secret itself
// for GitLab. "" means that there is none.
func (k Kind) proof(h http.Header) string {
	names := map[Kind]string{GitHub: "X-Hub-Signature-256", GitLab: tokenHeader, Gitea: "X-Gitea-Signature",
		Forgejo: "X-Forgejo-Signature", Bitbucket: "X-Hub-Signature"}
	return strings.TrimPrefix(h.Get(names[k]), "sha256=")
}

// verify reports whether a delivery was made with the secret. Its duration does not depend on the proof.
func (k Kind) verify(proof string, body, secret []byte) bool {
	if k == GitLab {
		got, want := sha256.Sum256([]byte(proof)), sha256.Sum256(secret)
		return subtle.ConstantTimeCompare(got[:], want[:]) == 1
	}
	sum := hmac.New(sha256.New, secret)
	sum.Write(body)
	got, err := hex.DecodeString(proof)
	return hmac.Equal(got, sum.Sum(nil)) && err == nil
}

// delivery returns the ID that a forge gives to a delivery and its repetitions, or "".
func (k Kind) delivery(h http.Header) string {
	names := map[Kind][]string{GitHub: {"X-GitHub-Delivery"}, GitLab: {"Idempotency-Key", "X-Gitlab-Event-UUID"},
		Gitea: {"X-Gitea-Delivery"}, Forgejo: {"X-Forgejo-Delivery"}, Bitbucket: {"X-Request-UUID", "X-Request-Id"}}
	for _, name := range names[k] {
		if id := h.Get(name); id != "" {
			return id
		}
	}
	return ""
}

// payload has the parts of all forges' payloads that name a repository.
type payload struct {
	Repository struct {
		CloneURL string `json:"clone_url"` // GitHub, Gitea, Forgejo
		FullName string `json:"full_name"` // these, and Bitbucket Cloud
		Slug     string `json:"slug"`      // Bitbucket Server
		Project  struct {
			Key string `json:"key"`
		} `json:"project"`
	} `json:"repository"`
	Project struct { // GitLab
		URL  string `json:"git_http_url"`
		Path string `json:"path_with_namespace"`
	} `json:"project"`
}

// repositories returns the paths that the repository of a delivery may have on its server, without slashes around them
// and without ".git". The forge may be below a path of its host, and only its URLs contain that. There is no path in
// deliveries without a repository, such as a test.
func (k Kind) repositories(contentType string, body []byte) ([]string, error) {
	kind, _, err := mime.ParseMediaType(contentType)
	switch {
	case err == nil && kind == "application/json":
	case err == nil && kind == "application/x-www-form-urlencoded" && k == GitHub:
		form, err := url.ParseQuery(string(body))
		if err != nil {
			return nil, fault.New(fault.Invalid, "the form is not valid")
		}
		body = []byte(form.Get("payload"))
	default:
		return nil, fault.New(fault.Invalid, "content type %.80q: let the webhook send application/json", contentType)
	}
	var p payload
	err = json.NewDecoder(bytes.NewReader(body)).Decode(&p)
	if _, other := errors.AsType[*json.UnmarshalTypeError](err); err != nil && !other {
		return nil, fault.New(fault.Invalid, "the payload is not JSON")
	}
	r := p.Repository
	paths := []string{pathOf(r.CloneURL), r.FullName, pathOf(p.Project.URL), p.Project.Path}
	if r.Project.Key != "" && r.Slug != "" {
		server := r.Project.Key + "/" + r.Slug // in SSH URLs; HTTP URLs have it below scm
		paths = append(paths, "scm/"+server, server, strings.ToLower("scm/"+server), strings.ToLower(server))
	}
	var found []string
	for _, path := range paths {
		path = strings.TrimSuffix(strings.Trim(path, "/"), ".git")
		if path != "" && !slices.Contains(found, path) {
			found = append(found, path)
		}
	}
	return found, nil
}

// pathOf returns the path of a URL, or "".
func pathOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Path
}
