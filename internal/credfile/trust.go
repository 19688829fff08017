package credfile

import (
	"crypto/tls"
	"errors"
	"log/slog"
)

// Trust is what proves who is who between a gateway and a node, at either end; what was not configured is nil.
type Trust struct {
	Secret      *Secret
	Certificate *Certificate
	Authorities *Authorities // of the other side's certificates
}

// LoadTrust reads the files that have a name. Its error joins those of all files.
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

// ClientTLS is what a gateway speaks with a node.
func (t Trust) ClientTLS(serverName string) *tls.Config {
	config := &tls.Config{RootCAs: t.Authorities.Pool(), ServerName: serverName, MinVersion: tls.VersionTLS12}
	if t.Certificate != nil {
		config.GetClientCertificate = t.Certificate.GetClient
	}
	return config
}

// ServerTLS is what a node's port speaks. Each handshake looks at the authorities of now; none is skipped by a ticket
// of before.
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
