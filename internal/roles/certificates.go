package roles

import (
	"crypto/tls"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/config"
)

// certificateMetric is when the TLS certificates of a process expire, and whether they can be loaded. It reads the
// files at each scrape, since they may be replaced at any time.
type certificateMetric struct {
	files          []config.CertificateFile
	expiry, failed *prometheus.Desc
}

func newCertificateMetric(cfg *config.Config, role config.Role) *certificateMetric {
	label := []string{"certificate"}
	return &certificateMetric{
		files: cfg.Certificates(role),
		expiry: prometheus.NewDesc("packhorse_certificate_expiry_timestamp_seconds",
			"When the TLS certificate of a listener (http, node, search), or the one shown to a node (to_node_NAME), "+
				"expires, in seconds since 1970.", label, nil),
		failed: prometheus.NewDesc("packhorse_certificate_failed",
			"1 while a TLS certificate cannot be loaded with its key, and the one that was loaded before is in use; else 0.",
			label, nil),
	}
}

// Collectors, Describe and Collect make it a metric.
func (m *certificateMetric) Collectors() []prometheus.Collector { return []prometheus.Collector{m} }

func (m *certificateMetric) Describe(to chan<- *prometheus.Desc) { to <- m.expiry; to <- m.failed }

func (m *certificateMetric) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.files {
		if leaf, err := config.ReadLeaf(c.File); err == nil {
			to <- prometheus.MustNewConstMetric(m.expiry, prometheus.GaugeValue, float64(leaf.NotAfter.Unix()), c.What)
		}
		failed := 0.0
		if _, err := tls.LoadX509KeyPair(c.File, c.Private); err != nil { // the log says why, once
			failed = 1
		}
		to <- prometheus.MustNewConstMetric(m.failed, prometheus.GaugeValue, failed, c.What)
	}
}
