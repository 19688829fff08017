package remote

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Metrics counts sessions with nodes and their failures. All nodes of a gateway share one.
type Metrics struct {
	calls *prometheus.CounterVec
	downs *prometheus.CounterVec

	mu    sync.Mutex
	nodes map[string]int // number of Nodes by name, which can be two during a reload
	ready map[string]bool
}

// NewMetrics creates the metrics.
func NewMetrics() *Metrics {
	return &Metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_node_calls_total",
			Help: "Sessions with a storage node, by result (ok, or the kind of error).",
		}, []string{"node", "result"}),
		downs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_node_lost_total", Help: "Times that a storage node became unreachable or not ready.",
		}, []string{"node"}),
		nodes: make(map[string]int), ready: make(map[string]bool),
	}
}

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.calls, m.downs}
}

func (m *Metrics) open(node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.nodes[node]++; m.nodes[node] == 1 {
		m.ready[node] = true
	}
}

func (m *Metrics) close(node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.nodes[node]--; m.nodes[node] > 0 {
		return
	}
	delete(m.nodes, node)
	delete(m.ready, node)
	for _, v := range []interface{ DeletePartialMatch(prometheus.Labels) int }{m.calls, m.downs} {
		v.DeletePartialMatch(prometheus.Labels{"node": node})
	}
}

// count counts a session.
func (m *Metrics) count(node string, err error) {
	result := "ok"
	if err != nil {
		result = fault.KindOf(err).String()
	}
	m.calls.WithLabelValues(node, result).Inc()
}

func (m *Metrics) state(node string, s *state) {
	m.mu.Lock()
	defer m.mu.Unlock()
	up := s.err == nil
	if m.ready[node] && !up {
		m.downs.WithLabelValues(node).Inc()
	}
	m.ready[node] = up
}
