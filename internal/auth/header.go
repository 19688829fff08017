package auth

import (
	"encoding/base64"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// maxCredential bounds what is taken of an Authorization header, in bytes.
const maxCredential = 8 << 10

// credential is what a caller offers to prove who they are. It is never printed.
type credential struct {
	scheme string // "basic" or "bearer"
	user   string // of "basic": what the caller calls himself, of any form
	secret string
}

// fromHeader reads an Authorization header (RFC 7617, RFC 6750); without one ok is false. Errors never show anything of it.
func fromHeader(h http.Header) (c credential, ok bool, err error) {
	values := h["Authorization"]
	switch {
	case len(values) == 0:
		return c, false, nil
	case len(values) > 1: // which of them did whoever stands between us look at?
		return c, false, fault.New(fault.Invalid, "more than one Authorization header")
	case len(values[0]) > maxCredential:
		return c, false, fault.New(fault.Unauthenticated, "too long an Authorization header")
	}
	scheme, rest, _ := strings.Cut(strings.TrimSpace(values[0]), " ")
	rest = strings.TrimLeft(rest, " ")
	switch c.scheme = strings.ToLower(scheme); c.scheme {
	case "basic":
		plain, err := base64.StdEncoding.DecodeString(rest)
		if err != nil {
			return c, false, fault.New(fault.Unauthenticated, "bad Authorization header: Basic is followed by base64")
		}
		user, secret, colon := strings.Cut(string(plain), ":")
		if !colon || hasControls(user) || hasControls(secret) {
			return c, false, fault.New(fault.Unauthenticated, "bad Authorization header: no user name and password, or control characters in them")
		}
		c.user, c.secret = user, secret
		if isToken(user) && !strings.HasPrefix(secret, tokenPrefix) { // as CI systems write it: https://TOKEN@host, TOKEN:x-oauth-basic@host
			c.user, c.secret = "", user
		}
	case "bearer", "token": // Sourcegraph's programs say token
		c.scheme = "bearer"
		if rest == "" || strings.ContainsAny(rest, " \t") || hasControls(rest) {
			return c, false, fault.New(fault.Unauthenticated, "bad Authorization header: %s is followed by one word", scheme)
		}
		c.secret = rest
	default:
		return credential{}, false, fault.New(fault.Unauthenticated, "an Authorization header has to be Basic, Bearer or token here")
	}
	return c, true, nil
}

// hasControls tells what may stand in no field: control characters, and what is no UTF-8, of which different bytes would look alike elsewhere.
func hasControls(s string) bool {
	return !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl)
}
