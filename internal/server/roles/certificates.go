package roles

import (
	"crypto/tls"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

// certificateMetric exports the time of expiry of the TLS certificates of a process, and whether they can be loaded. It
// reads the files at each scrape, because they may be replaced at any time.
type certificateMetric struct {
	files          []config.CertificateFile
	expiry, failed *prometheus.Desc
}

func newCertificateMetric(cfg *config.Config, role config.Role) *certificateMetric {
	label := []string{"certificate"}
	return &certificateMetric{
		files: cfg.Certificates(role),
		expiry: prometheus.NewDesc("packhorse_certificate_expiry_timestamp_seconds",
			"Time of expiry of the TLS certificate of a listener (http, node, search) or of the client certificate for a "+
				"node (to_node_NAME), in seconds since 1970.", label, nil),
		failed: prometheus.NewDesc("packhorse_certificate_failed",
			"1 while a TLS certificate cannot be loaded with its key, so that the previous one stays in use, else 0.",
			label, nil),
	}
}

func (m *certificateMetric) Describe(to chan<- *prometheus.Desc) { to <- m.expiry; to <- m.failed }

func (m *certificateMetric) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.files {
		if leaf, err := config.ReadLeaf(c.File); err == nil {
			to <- prometheus.MustNewConstMetric(m.expiry, prometheus.GaugeValue, float64(leaf.NotAfter.Unix()), c.What)
		}
		failed := 0.0
		if _, err := tls.LoadX509KeyPair(c.File, c.Private); err != nil { // credfile logs the error
			failed = 1
		}
		to <- prometheus.MustNewConstMetric(m.failed, prometheus.GaugeValue, failed, c.What)
	}
}
