package router

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// reasonFailover is the label of requests assigned to a node after another one failed.
const reasonFailover = "failover"

// metrics counts assignments. Nodes are named in the configuration, which bounds the number of series.
type metrics struct {
	assigned  *prometheus.CounterVec
	failovers *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	with := promauto.With(r)
	return &metrics{
		assigned: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_route_assignments_total",
			Help: "Requests assigned to a storage node, by reason: only (no other node is available), free (it is " +
				"idle), least_busy, order (it is the first ready one), failover.",
		}, []string{"node", "reason"}),
		failovers: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_route_failovers_total",
			Help: "Requests sent to another storage node because this one failed before the first byte, by operation " +
				"(read, push) and kind of error.",
		}, []string{"node", "operation", "error"}),
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
}

// CountFailover counts a request that is sent to another node because this one failed with an error.
func (r *Router) CountFailover(from *Assignment, isPush bool, kind fault.Kind) {
	operation := "read"
	if isPush {
		operation = "push"
	}
	r.metrics.failovers.WithLabelValues(from.Name, operation, kind.String()).Inc()
}

// nodeCollector reports the state of the nodes at the time of a scrape.
type nodeCollector struct{ *Router }

var (
	inFlightDesc = prometheus.NewDesc("packhorse_node_in_flight",
		"Requests in flight at a storage node, as its gateway counts them.", []string{"node"}, nil)
	upDesc = prometheus.NewDesc("packhorse_node_up", "1 if a storage node can be reached and is ready, otherwise 0.",
		[]string{"node"}, nil)
	refusedDesc = prometheus.NewDesc("packhorse_node_pushes_refused",
		"1 if pushes are refused for lack of a common object store, otherwise 0.", []string{"node"}, nil)
)

// Describe implements prometheus.Collector.
func (c nodeCollector) Describe(out chan<- *prometheus.Desc) {
	out <- inFlightDesc
	out <- upDesc
	out <- refusedDesc
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
		out <- prometheus.MustNewConstMetric(inFlightDesc, prometheus.GaugeValue, float64(s.InFlight), s.Name)
		out <- prometheus.MustNewConstMetric(upDesc, prometheus.GaugeValue, up, s.Name)
		out <- prometheus.MustNewConstMetric(refusedDesc, prometheus.GaugeValue, refused, s.Name)
	}
}
