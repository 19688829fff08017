package httpguard

import "github.com/prometheus/client_golang/prometheus"

func (g *Guard) newMetrics() prometheus.Collector {
	all := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "packhorse_http_malformed_total",
		Help: "HTTP requests that were refused since two servers could understand them in two ways, by what is wrong with them.",
	}, []string{"reason"})
	for _, r := range refusals {
		g.refused[r] = all.WithLabelValues(r.Reason)
	}
	return all
}

// Collectors lists the metrics for registration.
func (g *Guard) Collectors() []prometheus.Collector { return []prometheus.Collector{g.all} }

func (g *Guard) count(why *Refusal) { g.refused[why].Inc() }
