package process

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// reaperMetrics is the reaper.Metrics of one server.
type reaperMetrics struct {
	up       *prometheus.GaugeVec // without labels; it has no value until a reaper is needed
	failures *prometheus.CounterVec
}

func newReaperMetrics(with promauto.Factory) *reaperMetrics {
	m := &reaperMetrics{
		up: with.NewGaugeVec(prometheus.GaugeOpts{Name: "packhorse_reaper_up",
			Help: "1 while the reaper runs, which ends git commands if the server is killed. Absent if no " +
				"reaper is wanted."}, nil),
		failures: with.NewCounterVec(prometheus.CounterOpts{Name: "packhorse_reaper_failures_total",
			Help: "Times that the reaper ended or could not be started."}, []string{"cause"}),
	}
	for _, cause := range []string{"ended", "start"} {
		m.failures.WithLabelValues(cause)
	}
	return m
}

func (m *reaperMetrics) Up(up bool) {
	n := 0.
	if up {
		n = 1
	}
	m.up.WithLabelValues().Set(n)
}

func (m *reaperMetrics) Failed(cause string) { m.failures.WithLabelValues(cause).Inc() }
