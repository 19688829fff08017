// Package account signs visitors of pages in and out, and shows them their access tokens.
//
// A session is a cookie with the visitor's credential: an access token, or an identity token of an OpenID issuer. It is
// encrypted with a key of the server, and checked with each request like a credential that a Git client sends. So a
// session ends with its credential, and the server keeps nothing.
package account

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

const (
	sessionName = "packhorse-session"
	sessionLife = 30 * 24 * time.Hour
	maxCookie   = 3800 // bytes of a value; browsers keep 4 KiB with the name
)

// session is the content of the cookie.
type session struct {
	Credential string
	Until      time.Time
}

// sealer encrypts cookies. Each purpose has a key of its own.
type sealer struct {
	aead cipher.AEAD
	now  func() time.Time
}

func newSealer(key []byte, purpose string, now func() time.Time) (*sealer, error) {
	sum := sha256.Sum256(append([]byte(purpose+"\x00"), key...))
	block, err := aes.NewCipher(sum[:])
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return &sealer{aead, now}, err
}

// seal encrypts a value. The error is Invalid if browsers would not keep the cookie.
func (s *sealer) seal(v any) (string, error) {
	plain, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	text := base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, plain, nil))
	if len(text) > maxCookie {
		return "", fault.New(fault.Invalid, "the identity token of your issuer is too large for a cookie")
	}
	return text, nil
}

// open decrypts the cookie of a request. It reports whether there is one that seal made.
func (s *sealer) open(r *http.Request, name string, secure bool, v any) bool {
	cookie, err := r.Cookie(cookieName(name, secure))
	if err != nil {
		return false
	}
	text, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	if err != nil {
		return false
	}
	plain, err := s.aead.Open(nil, nil, text, nil)
	return err == nil && json.Unmarshal(plain, v) == nil
}

// cookieName returns the name of a cookie in a browser. With TLS it has a prefix, so that other hosts of the domain
// cannot set the cookie.
func cookieName(name string, secure bool) string {
	if secure {
		return "__Host-" + name
	}
	return name
}

// setCookie sets a cookie, or removes it if life is 0.
func setCookie(w http.ResponseWriter, name, value string, life time.Duration, secure bool) {
	age := int(life.Seconds())
	if life <= 0 {
		age = -1
	}
	http.SetCookie(w, &http.Cookie{Name: cookieName(name, secure), Value: value, Path: "/", MaxAge: age, HttpOnly: true,
		Secure: secure, SameSite: http.SameSiteLaxMode})
}
