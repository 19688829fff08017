package control

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
)

// Trust says whom a port answers. All that is configured is demanded. With neither secret nor certificates everybody who reaches the
// port is trusted: that is for loopback addresses and Unix sockets, which who opens the listener sees to.
type Trust struct {
	Secret       func() string // the secret that callers share, as it is now; nil, or an empty one, for none
	Certificates bool          // TLS demands client certificates, and has verified them
}

// Whom a port answers where nothing tells callers apart.
const (
	callerLocal  = "local"
	callerSecret = "secret"
)

// What was wrong with a caller; metric labels.
type refusal string

const (
	noCertificate refusal = "no_certificate"
	noSecret      refusal = "no_secret"
	wrongSecret   refusal = "wrong_secret"
)

func (r refusal) Error() string {
	switch r {
	case noCertificate:
		return "this node wants a client certificate"
	case noSecret:
		return "this node wants a secret, as in the header Authorization: Bearer SECRET"
	}
	return "this is not the node's secret"
}

// identify tells who calls: the fingerprint of a certificate, or one of the names above. The error is a refusal.
func (t Trust) identify(r *http.Request) (string, error) {
	caller := callerLocal
	if t.Secret != nil {
		if secret := t.Secret(); secret != "" {
			if err := checkSecret(r.Header.Get("Authorization"), secret); err != nil {
				return "", err
			}
			caller = callerSecret
		}
	}
	if t.Certificates {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			return "", noCertificate
		}
		sum := sha256.Sum256(r.TLS.PeerCertificates[0].Raw)
		caller = "certificate " + hex.EncodeToString(sum[:])
	}
	return caller, nil
}

// checkSecret compares in a time that does not depend on either secret.
func checkSecret(authorization, secret string) error {
	scheme, given, _ := strings.Cut(authorization, " ")
	if authorization == "" || !strings.EqualFold(scheme, "Bearer") {
		return noSecret
	}
	a, b := sha256.Sum256([]byte(strings.TrimSpace(given))), sha256.Sum256([]byte(secret))
	if subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
		return wrongSecret
	}
	return nil
}

// Whoever gives a wrong secret waits for the answer; no more than maxWaiting do so at a time, the others are answered at once.
const (
	refusalDelay = 200 * time.Millisecond
	maxWaiting   = 64
)

// refuse answers a caller that is not trusted, in the protocol that it speaks.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var why refusal
	errors.As(err, &why)
	s.Metrics.refused.WithLabelValues(string(why)).Inc()
	s.Log.Warn("caller refused", "client", r.RemoteAddr, "reason", err.Error())
	if why == wrongSecret {
		s.delay(r)
	}
	if s.errors.IsSupported(r) {
		_ = s.errors.Write(w, r, connect.NewError(connect.CodeUnauthenticated, err))
		return
	}
	w.Header().Set("WWW-Authenticate", "Bearer")
	http.Error(w, err.Error(), http.StatusUnauthorized)
}

// delay keeps a caller waiting.
func (s *Server) delay(r *http.Request) {
	select {
	case s.doors <- struct{}{}:
	default:
		return
	}
	defer func() { <-s.doors }()
	timer := time.NewTimer(refusalDelay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Context().Done():
	}
}
