package reaper

import "github.com/prometheus/client_golang/prometheus"

// Metrics watches the reaper of one server.
type Metrics struct {
	up       *prometheus.GaugeVec // of no labels: there is none before a reaper is wanted
	failures *prometheus.CounterVec
}

// NewMetrics makes the metrics; the caller registers the Collectors.
func NewMetrics() *Metrics {
	m := &Metrics{
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "packhorse_reaper_up",
			Help: "1 while the process runs that ends git commands if this one is killed; absent where it is turned off."}, nil),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "packhorse_reaper_failures_total",
			Help: "Times that no such process ran: it ended, or could not be started."}, []string{"cause"}),
	}
	for _, cause := range []string{"ended", "start"} {
		m.failures.WithLabelValues(cause)
	}
	return m
}

func (m *Metrics) isUp(n float64) { m.up.WithLabelValues().Set(n) }

// Collectors lists what to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.up, m.failures}
}
