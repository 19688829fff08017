package control

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

// Trust configures which callers a port serves. A caller has to meet all configured conditions. Without a secret and
// certificates all callers are trusted. That is only for loopback addresses and Unix sockets, which the creator of the
// listener has to ensure.
type Trust struct {
	Secret       func() string // returns the current secret; nil, or an empty result: none
	Certificates bool          // TLS demands client certificates, and has verified them
	// Authorities returns the current certificate authorities. After a change the certificates of open connections are
	// verified again. Nil: certificates are verified once for each connection.
	Authorities func() *x509.CertPool
}

// Names of callers without a certificate.
const (
	callerLocal  = "local"
	callerSecret = "secret"
)

// refusal is the reason for which a caller is refused, and the value of a metric label.
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
		return "authentication required: use a client certificate"
	case noSecret:
		return "authentication required: send the secret in the header Authorization: Bearer SECRET"
	case expired:
		return "the client certificate has expired"
	case notVerified:
		return "the client certificate is no longer trusted"
	case fromBrowser:
		return "this port does not serve web pages"
	case otherHost:
		return "this port serves only this machine: use a loopback address or localhost"
	}
	return "wrong secret"
}

// code returns the codes for a refused caller.
func (r refusal) code() (connect.Code, int) {
	if r == fromBrowser || r == otherHost {
		return connect.CodePermissionDenied, http.StatusForbidden
	}
	return connect.CodeUnauthenticated, http.StatusUnauthorized
}

// identify returns the name of the caller: the fingerprint of a certificate, or one of the names above. The error is a
// refusal.
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
		if err := t.verifyAgain(r); err != nil {
			return "", err
		}
		sum := sha256.Sum256(r.TLS.PeerCertificates[0].Raw)
		caller = "certificate " + hex.EncodeToString(sum[:])
	}
	// otherwise web pages could call by DNS rebinding
	if caller == callerLocal && !overUnix(r) && !clients.IsLoopback(r.Host) {
		return "", otherHost
	}
	return caller, nil
}

// overUnix reports whether a request came by a Unix socket, which no page reaches.
func overUnix(r *http.Request) bool {
	a, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && a.Network() == "unix"
}

// verifyAgain verifies a certificate again, because the connection may be older than the current authorities.
func (t Trust) verifyAgain(r *http.Request) error {
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
	o := x509.VerifyOptions{Roots: pool, Intermediates: between, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := leaf.Verify(o); err != nil {
		return notVerified
	}
	if c != nil {
		c.verified.Store(pool)
	}
	return nil
}

// checkSecret compares the secrets in constant time.
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

// A caller with a wrong secret waits for the response. At most maxWaiting callers wait, and the others get it at once.
const (
	refusalDelay = 200 * time.Millisecond
	maxWaiting   = 64
)

// refusedBody is the timeout for reading the rest of a refused request, which net/http does.
const refusedBody = time.Second

// refusalInterval is the interval of log lines about refused callers from one address.
const refusalInterval = time.Minute

// refuse sends the error to an untrusted caller in its protocol, and closes the connection.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var reason refusal
	errors.As(err, &reason)
	address, _ := netip.ParseAddrPort(r.RemoteAddr) // the zero value for a Unix socket
	if ok, suppressed := s.refusals.Take(clients.NetworkOf(address.Addr())); ok {
		s.Log.Warn("caller refused", "client", r.RemoteAddr, "reason", err.Error(), "suppressed", suppressed)
	}
	if reason == wrongSecret {
		s.delay(r)
	}
	w.Header().Set("Connection", "close") // in HTTP/2 after its other calls
	if r.ProtoMajor == 1 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedBody))
	}
	code, status := reason.code()
	if s.errors.IsSupported(r) {
		_ = s.errors.Write(w, r, connect.NewError(code, err))
		return
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	http.Error(w, err.Error(), status)
}

// delay delays the response to a caller.
func (s *Server) delay(r *http.Request) {
	select {
	case s.delays <- struct{}{}:
	default:
		return
	}
	defer func() { <-s.delays }()
	_ = retry.Sleep(r.Context(), refusalDelay)
}
