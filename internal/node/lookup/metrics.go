package lookup

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts look-ups. All Readers of a process share one.
type Metrics struct {
	blobBytes  prometheus.Counter
	trees      prometheus.Counter
	unreadable prometheus.Counter
	memory     prometheus.Gauge
	refused    prometheus.Counter
}

// NewMetrics creates the metrics.
func NewMetrics() *Metrics {
	return &Metrics{
		blobBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_lookup_blob_bytes_total", Help: "Bytes of blobs sent to callers.",
		}),
		trees: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_lookup_trees_total", Help: "Trees read for listings and comparisons.",
		}),
		unreadable: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_lookup_unreadable_files_total",
			Help: "Files sent without content because their blobs are missing or damaged.",
		}),
		memory: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "packhorse_lookup_memory_bytes", Help: "Bytes of large objects in memory for look-ups now.",
		}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_lookup_memory_refused_total",
			Help: "Look-ups refused because other look-ups used the memory for large objects.",
		}),
	}
}

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.blobBytes, m.trees, m.unreadable, m.memory, m.refused}
}
