package web

import "github.com/prometheus/client_golang/prometheus"

// PageMetrics are the metrics of the pages for browsers.
type PageMetrics struct {
	pages   *prometheus.CounterVec
	painted *prometheus.CounterVec
	seconds prometheus.Histogram
}

// NewPageMetrics returns unregistered metrics.
func NewPageMetrics() *PageMetrics {
	m := &PageMetrics{
		pages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_pages_total", Help: "Pages sent to browsers, by page (search, file, clone, error) and status.",
		}, []string{"page", "status"}),
		painted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_pages_highlights_total",
			Help: "Files shown, by result of their highlighting: ok, none (unknown language), large, late (it took too " +
				"long), busy (too many at once).",
		}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "packhorse_pages_highlight_seconds", Help: "Duration of the highlighting of a file.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 8),
		}),
	}
	for _, result := range []string{paintOK, paintNone, paintLarge, paintLate, paintBusy} {
		m.painted.WithLabelValues(result)
	}
	return m
}

// Collectors returns the collectors to register.
func (m *PageMetrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.pages, m.painted, m.seconds}
}
