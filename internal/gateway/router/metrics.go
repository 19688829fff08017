package router

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// reasonFailover is the label of requests assigned to a node after another one failed.
const reasonFailover = "failover"

// metrics counts assignments. Nodes are named in the configuration, which bounds the number of series.
type metrics struct {
	assigned  *prometheus.CounterVec
	failovers *prometheus.CounterVec
	hints     *prometheus.CounterVec
	inFlight  *prometheus.Desc
	up        *prometheus.Desc
	held      *prometheus.Desc
	refused   *prometheus.Desc
}

// Results of hints, as labels.
const (
	hintSent    = "sent"
	hintFailed  = "failed"
	hintDropped = "dropped"
)

func newMetrics() metrics {
	return metrics{
		assigned: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_route_assignments_total",
			Help: "Requests assigned to a storage node, by reason: only (no other node is available), free (it is " +
				"idle), least_busy, order (it is the first ready one), failover.",
		}, []string{"node", "reason"}),
		failovers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_route_failovers_total",
			Help: "Requests sent to another storage node because this one failed before the first byte, by operation " +
				"(read, push) and kind of error.",
		}, []string{"node", "operation", "error"}),
		hints: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_route_hints_total",
			Help: "Hints to a storage node about records of other nodes, by result: sent, failed, dropped.",
		}, []string{"node", "result"}),
		inFlight: prometheus.NewDesc("packhorse_node_in_flight",
			"Requests in flight at a storage node, as its gateway counts them.",
			[]string{"node"}, nil),
		up: prometheus.NewDesc("packhorse_node_up", "1 if a storage node can be reached and is ready, otherwise 0.",
			[]string{"node"}, nil),
		held: prometheus.NewDesc("packhorse_node_held_repositories",
			"Repositories of an object store that are known to be on a node's disk.", []string{"node"}, nil),
		refused: prometheus.NewDesc("packhorse_node_pushes_refused",
			"1 if pushes are refused for lack of a common object store, otherwise 0.",
			[]string{"node"}, nil),
	}
}

func (m *metrics) newCounters(node string) *counters {
	c := &counters{assigned: map[balance.Reason]prometheus.Counter{},
		failover: m.assigned.WithLabelValues(node, reasonFailover)}
	for _, reason := range []balance.Reason{balance.Only, balance.Free, balance.LeastBusy, balance.InOrder} {
		c.assigned[reason] = m.assigned.WithLabelValues(node, string(reason))
	}
	return c
}

// forget removes the series of a node that no route names any more.
func (m *metrics) forget(node string) {
	m.assigned.DeletePartialMatch(prometheus.Labels{"node": node})
	m.failovers.DeletePartialMatch(prometheus.Labels{"node": node})
	m.hints.DeletePartialMatch(prometheus.Labels{"node": node})
}

// CountFailover counts a request that is sent to another node because this one failed with an error.
func (r *Router) CountFailover(from *Assignment, isPush bool, kind fault.Kind) {
	operation := "read"
	if isPush {
		operation = "push"
	}
	r.metrics.failovers.WithLabelValues(from.Name, operation, kind.String()).Inc()
}

// Collectors returns the metrics for registration.
func (r *Router) Collectors() []prometheus.Collector {
	return []prometheus.Collector{r.metrics.assigned, r.metrics.failovers, r.metrics.hints, nodeCollector{r}}
}

// nodeCollector reports the state of the nodes at the time of a scrape.
type nodeCollector struct{ *Router }

// Describe implements prometheus.Collector.
func (c nodeCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.metrics.inFlight
	out <- c.metrics.up
	out <- c.metrics.held
	out <- c.metrics.refused
}

// Collect implements prometheus.Collector.
func (c nodeCollector) Collect(out chan<- prometheus.Metric) {
	for _, s := range c.Status() {
		up, refused := 1.0, 0.0
		if s.Down != nil {
			up = 0
		}
		if s.Refused != "" {
			refused = 1
		}
		out <- prometheus.MustNewConstMetric(c.metrics.inFlight, prometheus.GaugeValue, float64(s.InFlight), s.Name)
		out <- prometheus.MustNewConstMetric(c.metrics.up, prometheus.GaugeValue, up, s.Name)
		out <- prometheus.MustNewConstMetric(c.metrics.held, prometheus.GaugeValue, float64(s.Held), s.Name)
		out <- prometheus.MustNewConstMetric(c.metrics.refused, prometheus.GaugeValue, refused, s.Name)
	}
}
