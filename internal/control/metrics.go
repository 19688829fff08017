package control

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts calls and bytes of a node's port.
type Metrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	refused *prometheus.CounterVec
	panics  prometheus.Counter
	copies  *prometheus.CounterVec
	kernel  prometheus.Counter
	user    prometheus.Counter
}

// NewMetrics makes the port's metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_control_calls_total", Help: "Calls of the control API by procedure and code.",
		}, []string{"procedure", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "packhorse_control_call_seconds", Help: "Time from a call's first message to the end of its answer.",
			Buckets: []float64{.0001, .0003, .001, .003, .01, .03, .1, .3, 1, 3, 10, 30, 100},
		}, []string{"procedure"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_control_refused_total", Help: "Callers that were not trusted, by reason.",
		}, []string{"reason"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_control_panics_total", Help: "Calls that ended in a panic; the log has the stack.",
		}),
		copies: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_copy_bytes_total", Help: "Bytes of answers by the way they took: copied by the kernel, or through user space.",
		}, []string{"path"}),
	}
	m.kernel, m.user = m.copies.WithLabelValues("kernel"), m.copies.WithLabelValues("user")
	return m
}

// ShareCopies counts bytes in another collector of packhorse_copy_bytes_total, that of a gateway in the same process, which has it
// registered. Called before the first use.
func (m *Metrics) ShareCopies(with *prometheus.CounterVec) {
	m.copies = nil
	m.kernel, m.user = with.WithLabelValues("kernel"), with.WithLabelValues("user")
}

// Collectors lists the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	all := []prometheus.Collector{m.calls, m.seconds, m.refused, m.panics}
	if m.copies != nil {
		all = append(all, m.copies)
	}
	return all
}
