package origin

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of origins.
type Metrics struct{}

// NewMetrics creates the metrics.
func NewMetrics() *Metrics { return &Metrics{} }

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector { return nil }
