package pack

import "github.com/prometheus/client_golang/prometheus"

// VerifyMetrics counts the results of a Verifier. It is safe for concurrent use.
type VerifyMetrics struct{ verified *prometheus.CounterVec }

// NewVerifyMetrics creates the metrics.
func NewVerifyMetrics() *VerifyMetrics {
	m := &VerifyMetrics{prometheus.NewCounterVec(prometheus.CounterOpts{Name: "packhorse_packs_verified_total",
		Help: "Packs compared with their checksums, by result: ok, damaged, or failed if they could not be read."},
		[]string{"result"})}
	for _, result := range []string{"ok", "damaged", "failed"} {
		m.verified.WithLabelValues(result)
	}
	return m
}

// Collectors returns the metrics to register.
func (m *VerifyMetrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.verified}
}
