package api

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// metrics counts searches by API.
type metrics struct{ searches *prometheus.CounterVec }

func newMetrics(r prometheus.Registerer) *metrics {
	return &metrics{promauto.With(r).NewCounterVec(prometheus.CounterOpts{
		Name: "packhorse_search_api_requests_total",
		Help: "Searches by API (json and events of Packhorse, stream and graphql of Sourcegraph) and by result (ok, or the " +
			"kind of error).",
	}, []string{"api", "result"})}
}

func (m *metrics) count(api string, err error) {
	result := "ok"
	if err != nil {
		result = fault.KindOf(err).String()
	}
	m.searches.WithLabelValues(api, result).Inc()
}
