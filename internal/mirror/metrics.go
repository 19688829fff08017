package mirror

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of mirrors.
type Metrics struct {
}

// NewMetrics creates the metrics.
func NewMetrics() *Metrics { return &Metrics{} }

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector { return nil }

// watch counts the mirrors of m.
func (m *Metrics) watch(mirrors *Mirrors) {}
