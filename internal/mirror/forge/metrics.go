package forge

import "github.com/prometheus/client_golang/prometheus"

// Results of deliveries in metrics.
const (
	accepted = "accepted"
	replayed = "replayed"
	refused  = "refused"
	invalid  = "invalid"
	dropped  = "dropped"
)

// Metrics has the metrics of webhooks that forges send.
type Metrics struct{ deliveries *prometheus.CounterVec }

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	return &Metrics{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "packhorse_mirror_webhooks_total",
		Help: "Webhooks that forges sent, by forge and result: accepted, refused (no or a wrong signature), invalid, " +
			"replayed (the same delivery again), or dropped (too many mirrors wait).",
	}, []string{"forge", "result"})}
}

// Collectors returns the metrics for a registry.
func (m *Metrics) Collectors() []prometheus.Collector { return []prometheus.Collector{m.deliveries} }
