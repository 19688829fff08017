package tracing

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct{ sent, failed, dropped prometheus.Counter }

func newMetrics(r prometheus.Registerer) *metrics {
	spans := promauto.With(r).NewCounterVec(prometheus.CounterOpts{
		Name: "packhorse_trace_spans_total",
		Help: "Spans of traced requests: sent to the collector, failed (it did not take them), or dropped because too " +
			"many waited.",
	}, []string{"result"})
	return &metrics{sent: spans.WithLabelValues("sent"), failed: spans.WithLabelValues("failed"),
		dropped: spans.WithLabelValues("dropped")}
}
