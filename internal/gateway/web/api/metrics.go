package api

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Metrics counts searches by API.
type Metrics struct{ searches *prometheus.CounterVec }

// NewMetrics returns unregistered metrics.
func NewMetrics() *Metrics {
	return &Metrics{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "packhorse_search_api_requests_total",
		Help: "Searches by API (json and events of Packhorse, stream and graphql of Sourcegraph) and by result (ok, or the " +
			"kind of error).",
	}, []string{"api", "result"})}
}

// Collectors returns the collectors to register.
func (m *Metrics) Collectors() []prometheus.Collector { return []prometheus.Collector{m.searches} }

func (m *Metrics) count(api string, err error) {
	result := "ok"
	if err != nil {
		result = fault.KindOf(err).String()
	}
	m.searches.WithLabelValues(api, result).Inc()
}
