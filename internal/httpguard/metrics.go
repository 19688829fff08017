package httpguard

import "github.com/prometheus/client_golang/prometheus"

func newCounter() *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "packhorse_http_malformed_total",
		Help: "HTTP requests that were refused because two servers could understand them in two ways, by reason.",
	}, []string{"reason"})
	for _, r := range refusals {
		c.WithLabelValues(r.Reason)
	}
	return c
}

// Collectors lists the metrics for registration.
func (g *Guard) Collectors() []prometheus.Collector { return []prometheus.Collector{g.refused} }

func (g *Guard) count(why *Refusal) { g.refused.WithLabelValues(why.Reason).Inc() }
