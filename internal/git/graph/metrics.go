package graph

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts over all repositories; one value is shared by their Graphs.
type Metrics struct {
	badFiles, parsed, visited prometheus.Counter
}

// NewMetrics makes counters at zero.
func NewMetrics() *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	return &Metrics{
		badFiles: counter("packhorse_graph_bad_files_total",
			"Commit-graphs put aside because they cannot be read or contradict themselves."),
		parsed: counter("packhorse_graph_parsed_commits_total",
			"Commits parsed from objects because no commit-graph holds them."),
		visited: counter("packhorse_graph_visited_commits_total", "Commits visited by history walks."),
	}
}

// Collectors lists what to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.badFiles, m.parsed, m.visited}
}
