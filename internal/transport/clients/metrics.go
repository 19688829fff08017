package clients

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts the connections of the listeners that clients reach.
type Metrics struct {
	refused *prometheus.CounterVec
	closed  *prometheus.CounterVec

	mu       sync.Mutex
	limiters []*Limiter
}

var (
	openDesc = prometheus.NewDesc("packhorse_connections",
		"Connections of clients now, by listener (http, ssh) and state: running (a request runs), idle (waiting for the "+
			"client).", []string{"listener", "state"}, nil)
	limitDesc = prometheus.NewDesc("packhorse_connections_limit", "Maximum number of connections, by listener.",
		[]string{"listener"}, nil)
)

// NewMetrics makes the metrics, which all Limiters of a process share.
func NewMetrics(r prometheus.Registerer) *Metrics {
	with := promauto.With(r)
	m := &Metrics{
		refused: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_connections_refused_total",
			Help: "Connections refused because all others have a running request, by listener and reason: connections (too " +
				"many), address_connections (too many from this address).",
		}, []string{"listener", "reason"}),
		closed: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_connections_closed_total",
			Help: "Idle connections closed for a new one, by listener and reason, as for refused ones.",
		}, []string{"listener", "reason"}),
	}
	if r != nil {
		r.MustRegister((*gauges)(m))
	}
	return m
}

// watch counts the connections of a limiter, too.
func (m *Metrics) watch(l *Limiter) {
	for _, why := range []string{byTotal, byAddress} {
		m.refused.WithLabelValues(l.Name, why)
		m.closed.WithLabelValues(l.Name, why)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limiters = append(m.limiters, l)
}

// gauges collects the figures of the limiters.
type gauges Metrics

// Describe implements prometheus.Collector.
func (g *gauges) Describe(to chan<- *prometheus.Desc) { to <- openDesc; to <- limitDesc }

// Collect implements prometheus.Collector.
func (g *gauges) Collect(to chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.limiters {
		open, idle := l.counts()
		to <- prometheus.MustNewConstMetric(openDesc, prometheus.GaugeValue, float64(open-idle), l.Name, "running")
		to <- prometheus.MustNewConstMetric(openDesc, prometheus.GaugeValue, float64(idle), l.Name, "idle")
		to <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, float64(l.Connections), l.Name)
	}
}
