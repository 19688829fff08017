package auth

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// LFSTokens makes and checks the tokens that clients of Git LFS get over SSH for its HTTP API (git-lfs-authenticate). A
// token is for one repository and one operation, and expires. It is valid as long as the SSH key or certificate that it
// was made for: each use identifies the owner of that again, and the rules decide. Gateways with the same secret accept
// each other's tokens. Safe for concurrent use.
//
// A token has the prefix and the alphabet of other tokens, so that Redact removes it from logs, and is longer. It
// consists of an lfsClaim and its HMAC-SHA256. No list of valid tokens is kept, so that one cannot be revoked by
// itself: it expires soon.
type LFSTokens struct {
	secret   func() string
	identify KeyIdentifier
	now      func() time.Time
}

// KeyIdentifier identifies the owner of an SSH key, as Auth.Key does.
type KeyIdentifier func(ctx context.Context, login string, key ssh.PublicKey,
	from netip.Addr) (id Identity, noTouch bool, err error)

// LFSTokenLife is how long a token for Git LFS is valid.
const LFSTokenLife = 15 * time.Minute

// NewLFSTokens makes LFSTokens. secret returns the current key of the HMAC. A nil now means time.Now.
func NewLFSTokens(secret func() string, identify KeyIdentifier, now func() time.Time) *LFSTokens {
	if now == nil {
		now = time.Now
	}
	return &LFSTokens{secret, identify, now}
}

// lfsClaim is what a token for Git LFS proves: that its owner has logged in with a key.
type lfsClaim struct {
	Login      string    `json:"l"`
	Key        []byte    `json:"k"` // or certificate, in wire format
	Repository string    `json:"r"`
	Operation  Operation `json:"o"`
	Expires    int64     `json:"e"` // seconds since 1970
}

// New makes a token for a caller who has logged in with a key, and may perform an operation on a repository. It returns
// the value of the Authorization header; a caller without a key has none, "".
func (t *LFSTokens) New(login string, key ssh.PublicKey, repo git.RepoPath, op Operation) string {
	if key == nil {
		return ""
	}
	claim, _ := json.Marshal(lfsClaim{ // never fails
		Login: login, Key: key.Marshal(), Repository: repo.String(), Operation: op,
		Expires: t.now().Add(LFSTokenLife).Unix(),
	})
	return "Bearer " + tokenPrefix + tokenEncoding.EncodeToString(append(t.mac(forClaims, claim), claim...))
}

// Purposes of the secret.
const (
	forClaims = "packhorse token for Git LFS\x00"
	forURLs   = "packhorse token for a URL of Git LFS\x00"
)

func (t *LFSTokens) mac(purpose string, text []byte) []byte {
	m := hmac.New(sha256.New, []byte(t.secret()))
	m.Write([]byte(purpose))
	m.Write(text)
	return m.Sum(nil)
}

// Identify returns the identity that a token in a request for a repository proves, and how long the token remains
// valid. ok is false if the request has no such token. The error is Unauthenticated, also if the key has been removed
// or is not valid for the address of the request, or that of Auth.Key.
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
	claim, key, err := t.parse(token)
	if err != nil {
		return id, 0, true, err
	}
	if left = time.Unix(claim.Expires, 0).Sub(t.now()); left <= 0 {
		return id, 0, true, fault.New(fault.Unauthenticated, "this token for Git LFS has expired")
	}
	claimed, err := git.ParseRepoPath(claim.Repository)
	if err != nil || !slices.Equal(pathOf(claimed), pathOf(repo)) {
		return id, 0, true, fault.New(fault.Unauthenticated, "this token for Git LFS is for another repository")
	}
	from, _ := netip.ParseAddr(id.Address)
	owner, _, err := t.identify(r.Context(), claim.Login, key, from)
	if err != nil {
		return id, 0, true, err
	}
	owner.Address = id.Address
	grant := Grant{Operation: claim.Operation}
	if owner.Grant != nil {
		grant = *owner.Grant
		grant.Operation = min(claim.Operation, owner.Grant.Operation)
	}
	owner.Grant = &grant
	return owner, left, true, nil
}

// parse returns what a token proves, and its key.
func (t *LFSTokens) parse(token string) (claim lfsClaim, key ssh.PublicKey, err error) {
	text, err := tokenEncoding.DecodeString(token[len(tokenPrefix):])
	if err == nil && len(text) >= sha256.Size && hmac.Equal(text[:sha256.Size], t.mac(forClaims, text[sha256.Size:])) &&
		json.Unmarshal(text[sha256.Size:], &claim) == nil {
		if key, err = ssh.ParsePublicKey(claim.Key); err == nil {
			return claim, key, nil
		}
	}
	return claim, nil, fault.New(fault.Unauthenticated, "wrong token for Git LFS")
}

// isLFSToken reports whether a text has the form of a token for Git LFS.
func isLFSToken(s string) bool {
	return len(s) >= lfsTokenLength && strings.HasPrefix(s, tokenPrefix)
}

// lfsTokenLength is the minimum length of a token for Git LFS.
var lfsTokenLength = len(tokenPrefix) + tokenEncoding.EncodedLen(sha256.Size)
