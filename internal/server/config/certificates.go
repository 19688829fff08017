package config

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"time"
)

// expiresSoon is the remaining time of a certificate below which there is a warning.
const expiresSoon = 14 * 24 * time.Hour

// CertificateFile is a TLS certificate in the configuration.
type CertificateFile struct {
	Key     string // of the configuration
	What    string // the metric's label
	File    string // of the certificate and its chain
	Private string // file of its private key
}

// Certificates returns the TLS certificates that a role presents to other processes.
func (c *Config) Certificates(role Role) (list []CertificateFile) {
	add := func(on bool, key, what, file, private string) {
		if on && file != "" {
			list = append(list, CertificateFile{key, what, file, private})
		}
	}
	add(role.FacesClients(), "http.tls_cert", "http", c.HTTP.TLSCert, c.HTTP.TLSKey)
	add(role.OwnsRepositories() && c.Storage.Listen != "", "storage.tls_cert", "node", c.Storage.TLSCert, c.Storage.TLSKey)
	add(role == RoleSearch || role == RoleGateway && c.Search.Address != "", "search.tls_cert", "search", c.Search.TLSCert,
		c.Search.TLSKey)
	for i := range c.Node {
		add(role.asksNodes(), fmt.Sprintf("node[%d].tls_cert", i), "to_node_"+c.Node[i].Name, c.Node[i].TLSCert,
			c.Node[i].TLSKey)
	}
	return list
}

// ReadLeaf reads the first certificate of a PEM file, which belongs to the server.
func ReadLeaf(file string) (*x509.Certificate, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			return x509.ParseCertificate(block.Bytes)
		}
	}
	return nil, fmt.Errorf("%s contains no certificate", file)
}

// Validity describes the problem with the period of a certificate. It returns "" if there is none.
func Validity(c *x509.Certificate, now time.Time) string {
	day := func(t time.Time) string { return t.UTC().Format(time.DateOnly) }
	switch {
	case now.After(c.NotAfter):
		return fmt.Sprintf("the certificate expired on %s; renew it: clients refuse the connection", day(c.NotAfter))
	case now.Before(c.NotBefore):
		return fmt.Sprintf("the certificate is valid from %s on: check the clock; clients refuse the connection until then",
			day(c.NotBefore))
	case c.NotAfter.Sub(now) < expiresSoon:
		return fmt.Sprintf("the certificate expires on %s, in %d days; renew it", day(c.NotAfter),
			int(c.NotAfter.Sub(now)/(24*time.Hour)))
	}
	return ""
}
