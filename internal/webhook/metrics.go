package webhook

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts what targets were asked and told.
type Metrics struct {
	decisions, deliveries *prometheus.CounterVec
	seconds               *prometheus.HistogramVec
	pending               *prometheus.GaugeVec
	oldest                *prometheus.GaugeVec
}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	return &Metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_webhook_decisions_total",
			Help: "Targets asked about a push, by result: accepted, refused, failed_open (the push went on), failed_closed, cancelled.",
		}, []string{"target", "result"}),
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_webhook_deliveries_total",
			Help: "Deliveries tried, by result: delivered, failed (it comes again), dead (given up).",
		}, []string{"target", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "packhorse_webhook_seconds", Help: "Time of requests to targets.", Buckets: []float64{.01, .03, .1, .3, 1, 3, 10, 30},
		}, []string{"target", "event"}),
		pending: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "packhorse_webhook_pending", Help: "Deliveries that wait for a target.",
		}, []string{"target"}),
		oldest: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "packhorse_webhook_oldest_timestamp_seconds", Help: "When the oldest delivery that waits was recorded, as Unix time; 0: none waits.",
		}, []string{"target"}),
	}
}

// Collectors lists the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.decisions, m.deliveries, m.seconds, m.pending, m.oldest}
}
