package graph

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts for all repositories. Their Graphs share one value.
type Metrics struct {
	badFiles, parsed, visited prometheus.Counter
}

// NewMetrics creates the metrics.
func NewMetrics() *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	return &Metrics{
		badFiles: counter("packhorse_graph_bad_files_total",
			"Commit-graphs that are ignored because they are unreadable or damaged."),
		parsed: counter("packhorse_graph_parsed_commits_total",
			"Commits parsed from objects because they are not in a commit-graph."),
		visited: counter("packhorse_graph_visited_commits_total", "Commits visited by history walks."),
	}
}

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.badFiles, m.parsed, m.visited}
}
