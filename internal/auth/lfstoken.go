package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// LFSTokens makes and checks the tokens that clients of Git LFS get over SSH for its HTTP API (git-lfs-authenticate). A
// token is for one repository and one operation, and expires. It proves the identity that it was made for, and the
// rules decide at each use. Gateways with the same key accept each other's tokens. Safe for concurrent use.
//
// A token has the prefix and the alphabet of other tokens, so that Redact removes it from logs, and is longer. It
// consists of an lfsClaim and its HMAC-SHA256. No list of valid tokens is kept, so that one cannot be revoked by
// itself: it expires soon.
type LFSTokens struct {
	key func() string
	now func() time.Time
}

// LFSTokenLife is how long a token for Git LFS is valid.
const LFSTokenLife = 15 * time.Minute

// NewLFSTokens makes LFSTokens. key returns the current key. A nil now means time.Now.
func NewLFSTokens(key func() string, now func() time.Time) *LFSTokens {
	if now == nil {
		now = time.Now
	}
	return &LFSTokens{key, now}
}

// lfsClaim is what a token for Git LFS proves.
type lfsClaim struct {
	Name       string    `json:"n"`
	By         string    `json:"b"`
	Credential string    `json:"c,omitempty"`
	Repository string    `json:"r"`
	Operation  Operation `json:"o"`
	Expires    int64     `json:"e"`           // seconds since 1970
	Named      bool      `json:"g,omitempty"` // the grant of the credential names repositories
}

// New makes a token for an identity that may perform an operation on a repository. It returns the value of the
// Authorization header; an anonymous caller has none, "".
func (t *LFSTokens) New(id Identity, repo git.RepoPath, op Operation) string {
	if id.Anonymous() {
		return ""
	}
	claim, _ := json.Marshal(lfsClaim{ // never fails
		Name: id.Name, By: id.By, Credential: id.Credential, Repository: repo.String(), Operation: op,
		Expires: t.now().Add(LFSTokenLife).Unix(), Named: id.Grant != nil && len(id.Grant.Repositories) > 0,
	})
	return "Bearer " + tokenPrefix + tokenEncoding.EncodeToString(append(t.mac(claim), claim...))
}

func (t *LFSTokens) mac(claim []byte) []byte {
	m := hmac.New(sha256.New, []byte(t.key()))
	m.Write([]byte("packhorse token for Git LFS\x00"))
	m.Write(claim)
	return m.Sum(nil)
}

// Identify returns the identity that a token in a request for a repository proves, and how long the token remains
// valid. ok is false if the request has no such token. The error is Unauthenticated.
func (t *LFSTokens) Identify(r *http.Request, repo git.RepoPath) (id Identity, left time.Duration, ok bool, err error) {
	values := r.Header["Authorization"]
	if len(values) != 1 || len(values[0]) > maxCredential {
		return id, 0, false, nil
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "bearer") || !isLFSToken(token) {
		return id, 0, false, nil
	}
	id.Address = addressOf(r.RemoteAddr)
	text, err := tokenEncoding.DecodeString(token[len(tokenPrefix):])
	var claim lfsClaim
	if err != nil || len(text) < sha256.Size || !hmac.Equal(text[:sha256.Size], t.mac(text[sha256.Size:])) ||
		json.Unmarshal(text[sha256.Size:], &claim) != nil {
		return id, 0, true, fault.New(fault.Unauthenticated, "wrong token for Git LFS")
	}
	if left = time.Unix(claim.Expires, 0).Sub(t.now()); left <= 0 {
		return id, 0, true, fault.New(fault.Unauthenticated, "this token for Git LFS has expired")
	}
	if claim.Repository != repo.String() {
		return id, 0, true, fault.New(fault.Unauthenticated, "this token for Git LFS is for another repository")
	}
	id.Name, id.By, id.Credential = claim.Name, claim.By, claim.Credential
	id.Grant = &Grant{Operation: claim.Operation}
	if claim.Named {
		id.Grant.Repositories = []Pattern{{pathOf(repo)}}
	}
	return id, left, true, nil
}

// isLFSToken reports whether a text has the form of a token for Git LFS.
func isLFSToken(s string) bool {
	return len(s) >= lfsTokenLength && strings.HasPrefix(s, tokenPrefix)
}

// lfsTokenLength is the minimum length of a token for Git LFS.
var lfsTokenLength = len(tokenPrefix) + tokenEncoding.EncodedLen(sha256.Size)
