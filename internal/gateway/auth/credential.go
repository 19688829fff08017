package auth

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Credential is what a caller presents to prove an identity. It must never be printed.
type Credential struct {
	Scheme  string        // "basic", "bearer" or "key"
	User    string        // with "basic" and "key": the claimed user name, in any form
	Secret  string        // with "basic" and "bearer": the password or token
	Key     ssh.PublicKey // with "key": a public key or certificate, whose signature the caller has verified
	Address string        // IP address of the caller, without a port

	// checkGuesses fails with Exhausted while the caller has to wait before the next guess. Nil means no limit.
	// Authenticators of passwords, which can be guessed, call it before they compare.
	checkGuesses func() error
}

// Authenticator identifies callers by one kind of credential. Safe for concurrent use.
type Authenticator interface {
	// Accepts reports whether the authenticator may know the credential, by its form.
	Accepts(c *Credential) bool
	// Identify returns the identity that the credential proves. The error is Unauthenticated for a wrong credential,
	// Unavailable while that cannot be determined, or Exhausted. After an error from notKnown, the next authenticator that
	// accepts the credential is asked.
	Identify(ctx context.Context, c *Credential) (Identity, error)
	// Configured reports whether the authenticator can identify a caller, or could earlier.
	Configured() bool
	// Close ends the authenticator. No call may be running.
	Close() error
}

// notKnownError is the error of an authenticator that does not know a credential.
type notKnownError struct{ error }

func (e notKnownError) Unwrap() error { return e.error }

// notKnown marks an error after which the next authenticator is asked.
func notKnown(err error) error { return notKnownError{err} }

func isNotKnown(err error) bool {
	_, ok := errors.AsType[notKnownError](err)
	return ok
}

// genuineError is the error for a credential that was not guessed, such as an expired token.
type genuineError struct{ error }

func (e genuineError) Unwrap() error { return e.error }

// genuine marks the error for a wrong credential that does not count as a guess.
func genuine(err error) error { return genuineError{err} }

// HasExpired reports whether an error of identification is about a credential that was valid once.
func HasExpired(err error) bool { return isGenuine(err) }

func isGenuine(err error) bool {
	_, ok := errors.AsType[genuineError](err)
	return ok
}

// maxCredential is the maximum length of an Authorization header in bytes.
const maxCredential = 8 << 10

// fromHeader parses an Authorization header (RFC 7617, RFC 6750). ok is false without one. Errors contain nothing of
// the header.
func fromHeader(h http.Header) (c Credential, ok bool, err error) {
	values := h["Authorization"]
	switch {
	case len(values) == 0:
		return c, false, nil
	case len(values) > 1: // a proxy may have checked another one
		return c, false, fault.New(fault.Invalid, "more than one Authorization header")
	case len(values[0]) > maxCredential:
		return c, false, fault.New(fault.Unauthenticated, "the Authorization header is longer than %d bytes", maxCredential)
	}
	scheme, rest, _ := strings.Cut(strings.TrimSpace(values[0]), " ")
	rest = strings.TrimLeft(rest, " ")
	switch c.Scheme = strings.ToLower(scheme); c.Scheme {
	case "basic":
		plain, err := base64.StdEncoding.DecodeString(rest)
		if err != nil {
			return c, false, fault.New(fault.Unauthenticated, "invalid Authorization header: Basic needs base64")
		}
		user, secret, colon := strings.Cut(string(plain), ":")
		if !colon || hasControls(user) || hasControls(secret) {
			return c, false, fault.New(fault.Unauthenticated,
				"invalid Authorization header: no user name and password, or control characters in them")
		}
		c.User, c.Secret = user, secret
		// CI systems use https://TOKEN@host and https://TOKEN:x-oauth-basic@host
		if isToken(user) && !strings.HasPrefix(secret, tokenPrefix) {
			c.User, c.Secret = "", user
		}
	case "bearer", "token": // Sourcegraph's programs use token
		c.Scheme = "bearer"
		if rest == "" || strings.ContainsAny(rest, " \t") || hasControls(rest) {
			return c, false, fault.New(fault.Unauthenticated, "invalid Authorization header: %s needs one word", scheme)
		}
		c.Secret = rest
	default:
		return Credential{}, false, fault.New(fault.Unauthenticated,
			"invalid Authorization header: use Basic, Bearer or token")
	}
	if isLFSToken(c.Secret) { // no hook and no origin gets it
		return c, false, genuine(fault.New(fault.Unauthenticated, "this token is for Git LFS only"))
	}
	return c, true, nil
}

// hasControls reports whether a text has control characters or is invalid UTF-8, in which different bytes could look
// the same to the hook.
func hasControls(s string) bool {
	return !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl)
}
