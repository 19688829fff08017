package remote_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"
)

// identity is what gateway and node show each other in TLS.
type identity struct {
	t     testing.TB
	roots *x509.CertPool
	node  *tls.Certificate

	mu      sync.Mutex
	gateway *tls.Certificate
}

func newIdentity(t testing.TB) *identity {
	i := &identity{t: t, roots: x509.NewCertPool()}
	i.node = i.certificate()
	i.gateway = i.certificate()
	return i
}

// certificate makes one that both sides trust.
func (i *identity) certificate() *tls.Certificate {
	i.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	number, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	template := &x509.Certificate{
		SerialNumber: number, Subject: pkix.Name{CommonName: "test", SerialNumber: number.String()},
		DNSNames:  []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		i.t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		i.t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	roots := i.roots.Clone()
	roots.AddCert(parsed)
	i.roots = roots
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// rotate gives the gateway another certificate.
func (i *identity) rotate() {
	c := i.certificate()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.gateway = c
}

func (i *identity) client() *tls.Config {
	i.mu.Lock()
	defer i.mu.Unlock()
	return &tls.Config{RootCAs: i.roots, ServerName: "localhost",
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			i.mu.Lock()
			defer i.mu.Unlock()
			return i.gateway, nil
		}}
}

func (i *identity) server() *tls.Config {
	return &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		i.mu.Lock()
		defer i.mu.Unlock()
		return &tls.Config{
			Certificates: []tls.Certificate{*i.node}, ClientCAs: i.roots, ClientAuth: tls.RequireAndVerifyClientCert,
			NextProtos: []string{"h2", "http/1.1"}, SessionTicketsDisabled: true,
		}, nil
	}}
}

// While the gateway's certificate changes, every clone goes well, and a transfer that began before ends.
func TestCertificateRotation(t *testing.T) {
	t.Parallel()
	i := newIdentity(t)
	w := newWorld(t, options{identity: i})
	repo := w.repo("app.git", 4<<20)
	w.clone(repo, "app", "2")
	rotated := false
	out := &answer{onWrite: func(int) error {
		if rotated {
			return nil
		}
		rotated = true
		i.rotate()
		for range 3 { // before and while the gateway notices
			w.clone(repo, "app", "2")
		}
		if !eventually(func() bool {
			return strings.Contains(w.log.String(), "client certificate for a storage node changed")
		}) {
			t.Error("the new certificate is not shown")
		}
		w.clone(repo, "app", "2")
		return nil
	}}
	if _, err := w.ask(context.Background(), "app", fetch(repo.ID("main"), 0), out); err != nil || out.Len() < 4<<20 {
		t.Errorf("the transfer that ran: %d bytes, %v", out.Len(), err)
	}
	for range 2 {
		w.clone(repo, "app", "2")
	}
	if strings.Contains(w.log.String(), "storage node is down") {
		t.Error("the node was lost")
	}
}
