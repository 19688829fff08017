package observe

import "github.com/prometheus/client_golang/prometheus"

// OpsMetrics watches the private listener.
type OpsMetrics struct{ refused *prometheus.CounterVec }

// NewOpsMetrics makes the metrics; the caller registers the Collectors.
func NewOpsMetrics() *OpsMetrics {
	m := &OpsMetrics{prometheus.NewCounterVec(prometheus.CounterOpts{Name: "packhorse_ops_refused_total",
		Help: "Connections to the private listener for which another one was closed, or which were, and requests that " +
			"were refused, since there were too many."},
		[]string{"what"})}
	for _, what := range []string{"connection", "request"} {
		m.refused.WithLabelValues(what)
	}
	return m
}

// Collectors lists what to register.
func (m *OpsMetrics) Collectors() []prometheus.Collector { return []prometheus.Collector{m.refused} }
