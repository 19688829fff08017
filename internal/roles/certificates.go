package roles

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// expiresSoon is how long before its end a certificate is worth a warning.
const expiresSoon = 14 * 24 * time.Hour

// certificateFile is a TLS certificate that the configuration names.
type certificateFile struct {
	key     string // of the configuration
	what    string // the metric's label
	file    string // of the certificate and its chain
	private string // file of its private key
}

// certificates are the TLS certificates that a role shows to others.
func (c *Config) certificates(role role) (list []certificateFile) {
	add := func(on bool, key, what, file, private string) {
		if on && file != "" {
			list = append(list, certificateFile{key, what, file, private})
		}
	}
	add(role.flags()&public != 0, "http.tls_cert", "http", c.HTTP.TLSCert, c.HTTP.TLSKey)
	add(role.flags()&repositories != 0 && c.Storage.Listen != "", "storage.tls_cert", "node", c.Storage.TLSCert, c.Storage.TLSKey)
	add(role == roleSearch || role == roleGateway && c.Search.Address != "", "search.tls_cert", "search", c.Search.TLSCert, c.Search.TLSKey)
	for i := range c.Node {
		add(role.flags()&asking != 0, fmt.Sprintf("node[%d].tls_cert", i), "to_node_"+c.Node[i].Name, c.Node[i].TLSCert, c.Node[i].TLSKey)
	}
	return list
}

// readLeaf reads the first certificate of a PEM file, which is the server's own.
func readLeaf(file string) (*x509.Certificate, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			return x509.ParseCertificate(block.Bytes)
		}
	}
	return nil, errors.New("no certificate in it")
}

// validity says what is wrong with the time of a certificate; "" if nothing is.
func validity(c *x509.Certificate, now time.Time) string {
	day := func(t time.Time) string { return t.UTC().Format(time.DateOnly) }
	switch {
	case now.After(c.NotAfter):
		return fmt.Sprintf("the certificate expired on %s; renew it: clients refuse the connection", day(c.NotAfter))
	case now.Before(c.NotBefore):
		return fmt.Sprintf("the certificate is valid from %s on; look at the clock: clients refuse the connection until then", day(c.NotBefore))
	case c.NotAfter.Sub(now) < expiresSoon:
		return fmt.Sprintf("the certificate expires on %s, in %d days; renew it", day(c.NotAfter), int(c.NotAfter.Sub(now)/(24*time.Hour)))
	}
	return ""
}

// certificateMetric is when the TLS certificates of a process expire, and whether they can be loaded. It reads the files at each scrape, since they
// may be replaced at any time.
type certificateMetric struct {
	files          []certificateFile
	expiry, failed *prometheus.Desc
}

func newCertificateMetric(cfg *Config, role role) *certificateMetric {
	label := []string{"certificate"}
	return &certificateMetric{
		files: cfg.certificates(role),
		expiry: prometheus.NewDesc("packhorse_certificate_expiry_timestamp_seconds",
			"When the TLS certificate of a listener (http, node, search), or the one shown to a node (to_node_NAME), expires, in seconds since 1970.", label, nil),
		failed: prometheus.NewDesc("packhorse_certificate_failed",
			"1 while a TLS certificate cannot be loaded with its key, and the one that was loaded before is in use; else 0.", label, nil),
	}
}

// Collectors, Describe and Collect make it a metric.
func (m *certificateMetric) Collectors() []prometheus.Collector { return []prometheus.Collector{m} }

func (m *certificateMetric) Describe(to chan<- *prometheus.Desc) { to <- m.expiry; to <- m.failed }

func (m *certificateMetric) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.files {
		if leaf, err := readLeaf(c.file); err == nil {
			to <- prometheus.MustNewConstMetric(m.expiry, prometheus.GaugeValue, float64(leaf.NotAfter.Unix()), c.what)
		}
		failed := 0.0
		if _, err := tls.LoadX509KeyPair(c.file, c.private); err != nil { // the log says why, once
			failed = 1
		}
		to <- prometheus.MustNewConstMetric(m.failed, prometheus.GaugeValue, failed, c.what)
	}
}
