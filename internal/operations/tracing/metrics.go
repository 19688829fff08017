package tracing

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	spans                 *prometheus.CounterVec
	sent, failed, dropped prometheus.Counter
	waiting               prometheus.GaugeFunc
}

func newMetrics(q *queue) *metrics {
	m := &metrics{
		spans: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_trace_spans_total",
			Help: "Spans of traced requests: sent to the collector, failed (it did not take them), or dropped because too " +
				"many waited.",
		}, []string{"result"}),
		waiting: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "packhorse_trace_spans_waiting", Help: "Spans that wait to be sent.",
		}, func() float64 { return float64(len(q.ended)) }),
	}
	m.sent, m.failed = m.spans.WithLabelValues("sent"), m.spans.WithLabelValues("failed")
	m.dropped = m.spans.WithLabelValues("dropped")
	return m
}

// Collectors lists what to register.
func (e *Exporter) Collectors() []prometheus.Collector {
	return []prometheus.Collector{e.queue.metrics.spans, e.queue.metrics.waiting}
}
