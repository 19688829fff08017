package credfile

import (
	"crypto/tls"
	"errors"
	"log/slog"
)

// Trust has the credentials of one side of a connection between a gateway and a node. A field that is not configured is
// nil.
type Trust struct {
	Secret      *Secret
	Certificate *Certificate
	Authorities *Authorities // of the other side's certificates
}

// LoadTrust reads the files with a non-empty name. Its error joins those of all files.
func LoadTrust(secretFile, certFile, keyFile, caFile string, log *slog.Logger) (t Trust, err error) {
	var errOfSecret, errOfCert, errOfCA error
	if secretFile != "" {
		t.Secret, errOfSecret = LoadSecret(secretFile, log)
	}
	if certFile != "" {
		t.Certificate, errOfCert = LoadCertificate(certFile, keyFile, log)
	}
	if caFile != "" {
		t.Authorities, errOfCA = LoadAuthorities(caFile, log)
	}
	return t, errors.Join(errOfSecret, errOfCert, errOfCA)
}

// ClientTLS returns the TLS configuration of a gateway for a node.
func (t Trust) ClientTLS(serverName string) *tls.Config {
	config := &tls.Config{RootCAs: t.Authorities.Pool(), ServerName: serverName, MinVersion: tls.VersionTLS12}
	if t.Certificate != nil {
		config.GetClientCertificate = t.Certificate.GetClient
	}
	return config
}

// ServerTLS returns the TLS configuration of a node's port. Each handshake uses the current authorities; session
// tickets are off, so that no handshake is skipped.
func (t Trust) ServerTLS() *tls.Config {
	config := &tls.Config{
		GetCertificate: t.Certificate.Get, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12,
		SessionTicketsDisabled: true,
	}
	if t.Authorities != nil {
		config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			now := config.Clone()
			now.GetConfigForClient, now.ClientAuth, now.ClientCAs = nil, tls.RequireAndVerifyClientCert, t.Authorities.Pool()
			return now, nil
		}
	}
	return config
}
