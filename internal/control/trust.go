package control

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/origin"
)

// Trust says whom a port answers. All that is configured is demanded. With neither secret nor certificates everybody who reaches the
// port is trusted: that is for loopback addresses and Unix sockets, which who opens the listener sees to.
type Trust struct {
	Secret       func() string // the secret that callers share, as it is now; nil, or an empty one, for none
	Certificates bool          // TLS demands client certificates, and has verified them
	// Authorities gives those whose certificates count, as they are now: a connection's is verified anew after they changed. Nil: what TLS
	// found counts for the connection's life.
	Authorities func() *x509.CertPool
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
	expired       refusal = "expired"
	notVerified   refusal = "not_verified"
	fromBrowser   refusal = "browser"
	otherHost     refusal = "host"
)

func (r refusal) Error() string {
	switch r {
	case noCertificate:
		return "this node wants a client certificate"
	case noSecret:
		return "this node wants a secret, as in the header Authorization: Bearer SECRET"
	case expired:
		return "the client certificate has expired"
	case notVerified:
		return "the client certificate is not one that this node trusts any more"
	case fromBrowser:
		return "this port is for programs, not for web pages"
	case otherHost:
		return "this port is for the machine itself: call it by a loopback address or as localhost"
	}
	return "this is not the node's secret"
}

// code is what a caller is answered.
func (r refusal) code() (connect.Code, int) {
	if r == fromBrowser || r == otherHost {
		return connect.CodePermissionDenied, http.StatusForbidden
	}
	return connect.CodeUnauthenticated, http.StatusUnauthorized
}

// identify tells who calls: the fingerprint of a certificate, or one of the names above. The error is a refusal.
func (t Trust) identify(r *http.Request) (string, error) {
	if new(http.CrossOriginProtection).Check(r) != nil {
		return "", fromBrowser
	}
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
		if err := t.stillGood(r); err != nil {
			return "", err
		}
		sum := sha256.Sum256(r.TLS.PeerCertificates[0].Raw)
		caller = "certificate " + hex.EncodeToString(sum[:])
	}
	if caller == callerLocal && !overUnix(r) && !origin.IsLoopback(r.Host) { // a web page has neither secret nor certificate
		return "", otherHost
	}
	return caller, nil
}

// overUnix reports whether a request came by a Unix socket, which no page reaches.
func overUnix(r *http.Request) bool {
	a, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && a.Network() == "unix"
}

// stillGood looks at a certificate again: a connection may be older than what is known of its caller.
func (t Trust) stillGood(r *http.Request) error {
	leaf, now := r.TLS.PeerCertificates[0], time.Now()
	if now.After(leaf.NotAfter) {
		return expired
	}
	if t.Authorities == nil {
		return nil
	}
	pool, c := t.Authorities(), connectionOf(r)
	if c != nil && c.verified.Load() == pool {
		return nil
	}
	between := x509.NewCertPool()
	for _, one := range r.TLS.PeerCertificates[1:] {
		between.AddCert(one)
	}
	o := x509.VerifyOptions{Roots: pool, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := leaf.Verify(o); err != nil {
		return notVerified
	}
	if c != nil {
		c.verified.Store(pool)
	}
	return nil
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

// refusedBody is how long the rest of a refused request may take, which net/http reads.
const refusedBody = time.Second

// refuse answers a caller that is not trusted, in the protocol that it speaks, and closes the connection.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var why refusal
	errors.As(err, &why)
	s.Metrics.refused.WithLabelValues(string(why)).Inc()
	s.complaints.refused(r.RemoteAddr, err)
	if why == wrongSecret {
		s.delay(r)
	}
	w.Header().Set("Connection", "close") // in HTTP/2, once its other calls have ended
	if r.ProtoMajor == 1 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedBody))
	}
	code, status := why.code()
	if s.errors.IsSupported(r) {
		_ = s.errors.Write(w, r, connect.NewError(code, err))
		return
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	http.Error(w, err.Error(), status)
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
