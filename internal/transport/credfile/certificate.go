package credfile

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
)

// Certificate is a TLS certificate with its private key, reloaded when its files change. Safe for concurrent use.
type Certificate struct{ followed[*tls.Certificate] }

// LoadCertificate reads a certificate with its chain, and its private key. Both are PEM.
func LoadCertificate(certFile, keyFile string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{followed[*tls.Certificate]{
		what: "TLS certificate", files: []string{certFile, keyFile}, log: log,
		load:  func() (*tls.Certificate, error) { return readCertificate(certFile, keyFile) },
		about: func(c *tls.Certificate) []any { return []any{"not_after", c.Leaf.NotAfter} },
	}}
	return c, c.first()
}

// Get implements GetCertificate of a tls.Config.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.get(), nil }

// GetClient implements GetClientCertificate of a tls.Config.
func (c *Certificate) GetClient(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return c.get(), nil
}

func readCertificate(certFile, keyFile string) (*tls.Certificate, error) {
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("load the TLS certificate: %w", err)
	}
	if cert.Leaf == nil {
		if cert.Leaf, err = x509.ParseCertificate(cert.Certificate[0]); err != nil {
			return nil, fmt.Errorf("load the TLS certificate: %w", err)
		}
	}
	return &cert, nil
}

// Authorities are the certificates of trusted authorities, reloaded when their file changes. Safe for concurrent use.
type Authorities struct{ followed[*x509.CertPool] }

// LoadAuthorities reads one or more certificates in PEM.
func LoadAuthorities(file string, log *slog.Logger) (*Authorities, error) {
	a := &Authorities{followed[*x509.CertPool]{
		what: "list of trusted certificates", files: []string{file}, log: log,
		load:  func() (*x509.CertPool, error) { return readAuthorities(file) },
		about: func(*x509.CertPool) []any { return []any{"file", file} },
	}}
	return a, a.first()
}

// Pool returns the current certificates. Callers do not change it.
func (a *Authorities) Pool() *x509.CertPool { return a.get() }

func readAuthorities(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("load the trusted certificates: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("load the trusted certificates: %w", errors.New(file+": no certificate in PEM"))
	}
	return pool, nil
}
