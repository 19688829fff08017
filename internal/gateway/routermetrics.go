package gateway

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/fault"
)

// reasonFailover is why a replica was asked after another one failed.
const reasonFailover = "failover"

// routerMetrics counts what a Router assigns. Nodes are named in the configuration: that bounds the labels.
type routerMetrics struct {
	assigned  *prometheus.CounterVec
	failovers *prometheus.CounterVec
	inFlight  *prometheus.Desc
	up        *prometheus.Desc
}

func newRouterMetrics() routerMetrics {
	return routerMetrics{
		assigned: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_route_assignments_total",
			Help: "Requests given to a storage node, by why it was this one: only (no other could), free (nothing in flight), least_busy, failover.",
		}, []string{"node", "reason"}),
		failovers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_route_failovers_total",
			Help: "Requests that another storage node was asked for because this one failed before the first byte, by the kind of error.",
		}, []string{"node", "error"}),
		inFlight: prometheus.NewDesc("packhorse_node_in_flight", "Requests at a storage node now, as its gateway counts them.",
			[]string{"node"}, nil),
		up: prometheus.NewDesc("packhorse_node_up", "Whether a storage node can be reached and is ready: 1, or 0.", []string{"node"}, nil),
	}
}

func (m *routerMetrics) newCounts(node string) *memberCounts {
	c := &memberCounts{assigned: map[balance.Reason]prometheus.Counter{}, next: m.assigned.WithLabelValues(node, reasonFailover)}
	for _, reason := range []balance.Reason{balance.Only, balance.Free, balance.LeastBusy} {
		c.assigned[reason] = m.assigned.WithLabelValues(node, string(reason))
	}
	return c
}

// forget drops the series of a node that no route names any more.
func (m *routerMetrics) forget(node string) {
	m.assigned.DeletePartialMatch(prometheus.Labels{"node": node})
	m.failovers.DeletePartialMatch(prometheus.Labels{"node": node})
}

func (m *routerMetrics) countFailover(node string, kind fault.Kind) {
	m.failovers.WithLabelValues(node, kind.String()).Inc()
}

// Collectors lists the router's metrics for registration.
func (r *Router) Collectors() []prometheus.Collector {
	return []prometheus.Collector{r.metrics.assigned, r.metrics.failovers, nodeCollector{r}}
}

// nodeCollector tells how the nodes are when it is asked.
type nodeCollector struct{ *Router }

// Describe is a prometheus.Collector's.
func (c nodeCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.metrics.inFlight
	out <- c.metrics.up
}

// Collect is a prometheus.Collector's.
func (c nodeCollector) Collect(out chan<- prometheus.Metric) {
	for _, s := range c.Status() {
		up := 1.0
		if s.Down != nil {
			up = 0
		}
		out <- prometheus.MustNewConstMetric(c.metrics.inFlight, prometheus.GaugeValue, float64(s.InFlight), s.Name)
		out <- prometheus.MustNewConstMetric(c.metrics.up, prometheus.GaugeValue, up, s.Name)
	}
}
