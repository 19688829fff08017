package hydrate

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Metrics counts the work of a Cache. It is safe for concurrent use.
type Metrics struct {
	hydrations *prometheus.CounterVec
	seconds    prometheus.Histogram
	bytes      prometheus.Gauge
	evictions  *prometheus.CounterVec
	damaged    prometheus.Counter
}

// NewMetrics creates the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	with := promauto.With(r)
	return &Metrics{
		hydrations: with.NewCounterVec(prometheus.CounterOpts{Name: "packhorse_store_hydrations_total",
			Help: "Downloads of the missing packs of a repository, by result: ok, or the error."}, []string{"result"}),
		seconds: with.NewHistogram(prometheus.HistogramOpts{Name: "packhorse_store_hydrate_seconds",
			Help:    "Duration of successful downloads of a repository's missing packs.",
			Buckets: []float64{.01, .03, .1, .3, 1, 3, 10, 30, 100, 300, 1000}}),
		bytes: with.NewGauge(prometheus.GaugeOpts{Name: "packhorse_store_cache_bytes",
			Help: "Bytes of local packs and LFS objects, including those that are being downloaded."}),
		evictions: with.NewCounterVec(prometheus.CounterOpts{Name: "packhorse_store_evictions_total",
			Help: "Removed to make room, by kind: the packs of a repository, or an LFS object."}, []string{"kind"}),
		damaged: with.NewCounter(prometheus.CounterOpts{Name: "packhorse_store_damaged_packs_total",
			Help: "Local packs that differed from their checksums and were downloaded again."}),
	}
}

// hydrated counts a hydration that took d.
func (m *Metrics) hydrated(d time.Duration, err error) {
	if err != nil {
		m.hydrations.WithLabelValues(fault.KindOf(err).String()).Inc()
		return
	}
	m.hydrations.WithLabelValues("ok").Inc()
	m.seconds.Observe(d.Seconds())
}
