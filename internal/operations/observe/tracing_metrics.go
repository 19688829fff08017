package observe

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type exportMetrics struct{ sent, failed, dropped prometheus.Counter }

func newExportMetrics(r prometheus.Registerer) *exportMetrics {
	spans := promauto.With(r).NewCounterVec(prometheus.CounterOpts{
		Name: "packhorse_trace_spans_total",
		Help: "Spans of traced requests: sent to the collector, failed (it did not take them), or dropped because too " +
			"many waited.",
	}, []string{"result"})
	return &exportMetrics{sent: spans.WithLabelValues("sent"), failed: spans.WithLabelValues("failed"),
		dropped: spans.WithLabelValues("dropped")}
}
