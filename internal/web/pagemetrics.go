package web

import "github.com/prometheus/client_golang/prometheus"

// PageMetrics are those of the pages for browsers.
type PageMetrics struct {
	pages   *prometheus.CounterVec
	painted *prometheus.CounterVec
	seconds prometheus.Histogram
}

// NewPageMetrics makes them; Collectors registers them.
func NewPageMetrics() *PageMetrics {
	m := &PageMetrics{
		pages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_pages_total", Help: "Pages that browsers were sent, by page (search, file, error) and status.",
		}, []string{"page", "status"}),
		painted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_pages_highlights_total",
			Help: "Files shown, by what became of their highlighting: ok, none (no language known), large, late (it took too " +
				"long), busy (others were being highlighted).",
		}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "packhorse_pages_highlight_seconds", Help: "Time that the highlighting of a file took.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 8),
		}),
	}
	for _, result := range []string{paintOK, paintNone, paintLarge, paintLate, paintBusy} {
		m.painted.WithLabelValues(result)
	}
	return m
}

// Collectors is what to register.
func (m *PageMetrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.pages, m.painted, m.seconds}
}
