package admit

import "github.com/prometheus/client_golang/prometheus"

// Collectors are the metrics of some lanes.
func Collectors(lanes ...*Lane) []prometheus.Collector {
	var all []prometheus.Collector
	for _, l := range lanes {
		labels := prometheus.Labels{"lane": l.name}
		all = append(all,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "packhorse_lane_running", Help: "Requests in the lane now.", ConstLabels: labels,
			}, func() float64 { return float64(l.running.Load()) }),
			prometheus.NewCounterFunc(prometheus.CounterOpts{
				Name: "packhorse_lane_refused_total", Help: "Requests refused because the lane was full.", ConstLabels: labels,
			}, func() float64 { return float64(l.refused.Load()) }))
	}
	return all
}

// Collectors are the metrics of the budget that large requests share.
func (b *Budget) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "packhorse_request_memory_bytes", Help: "Bytes of large requests in memory now, as counted against lanes.request_bytes.",
		}, func() float64 { return float64(b.used.Load()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "packhorse_request_memory_refused_total", Help: "Requests refused because large ones held lanes.request_bytes.",
		}, func() float64 { return float64(b.refused.Load()) }),
	}
}
