package graph

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts for all repositories. Their Graphs share one value.
type Metrics struct{ visited prometheus.Counter }

// NewMetrics creates the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	return &Metrics{promauto.With(r).NewCounter(prometheus.CounterOpts{
		Name: "packhorse_graph_visited_commits_total", Help: "Commits visited by history walks.",
	})}
}
