package inflight

import "github.com/prometheus/client_golang/prometheus"

var running = prometheus.NewDesc("packhorse_requests_running", "Requests in flight, by stage.", []string{"stage"}, nil)

// Collectors lists the board's metrics.
func (b *Board) Collectors() []prometheus.Collector { return []prometheus.Collector{b} }

// Describe implements prometheus.Collector.
func (b *Board) Describe(ch chan<- *prometheus.Desc) { ch <- running }

// Collect implements prometheus.Collector.
func (b *Board) Collect(ch chan<- prometheus.Metric) {
	var at [len(stages)]int
	b.each(func(r *Request) { at[r.stage.Load()]++ })
	for stage, n := range at {
		ch <- prometheus.MustNewConstMetric(running, prometheus.GaugeValue, float64(n), stages[stage])
	}
}
