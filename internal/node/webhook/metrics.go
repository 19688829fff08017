package webhook

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the metrics of webhooks.
type metrics struct {
	decisions, deliveries *prometheus.CounterVec
	seconds               *prometheus.HistogramVec
	pending               *prometheus.GaugeVec
	oldest                *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	with := promauto.With(r)
	return &metrics{
		decisions: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_webhook_decisions_total",
			Help: "Decisions about pushes by target and result: accepted, refused, failed_open (the push continued), " +
				"failed_closed, cancelled.",
		}, []string{"target", "result"}),
		deliveries: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_webhook_deliveries_total",
			Help: "Tries of deliveries by target and result: delivered, failed (tried again), dead (abandoned).",
		}, []string{"target", "result"}),
		seconds: with.NewHistogramVec(prometheus.HistogramOpts{
			Name: "packhorse_webhook_seconds", Help: "Duration of requests to targets.",
			Buckets: []float64{.01, .03, .1, .3, 1, 3, 10, 30},
		}, []string{"target", "event"}),
		pending: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "packhorse_webhook_pending", Help: "Pending deliveries by target.",
		}, []string{"target"}),
		oldest: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "packhorse_webhook_oldest_timestamp_seconds",
			Help: "Time of the oldest pending delivery in seconds since 1970, or 0.",
		}, []string{"target"}),
	}
}
