package refs

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts for all stores that share it.
type Metrics struct {
	loads   *prometheus.CounterVec
	reused  prometheus.Counter
	loaded  prometheus.Counter
	broken  prometheus.Counter
	retries prometheus.Counter
}

// NewMetrics creates the metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		loads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_ref_snapshot_loads_total",
			Help: "Requested ref snapshots: the present one (reused) or a new one (loaded).",
		}, []string{"result"}),
		broken: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_ref_broken_total",
			Help: "Loose refs that were left out because they are broken: empty, junk, invalid links, " +
				"dangling or looping symbolic refs.",
		}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_ref_snapshot_retries_total",
			Help: "Scans of a repository's refs that were repeated because refs moved meanwhile.",
		}),
	}
	m.reused, m.loaded = m.loads.WithLabelValues("reused"), m.loads.WithLabelValues("loaded")
	return m
}

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.loads, m.broken, m.retries}
}
