package hydrate

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Metrics counts the work of a Cache. It is safe for concurrent use.
type Metrics struct {
	hydrations   *prometheus.CounterVec
	seconds      prometheus.Histogram
	downloaded   prometheus.Counter
	bytes        prometheus.Gauge
	evictions    prometheus.Counter
	evictedFiles prometheus.Counter
	damaged      prometheus.Counter
}

// NewMetrics creates the metrics.
func NewMetrics() *Metrics {
	return &Metrics{
		hydrations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "packhorse_store_hydrations_total",
			Help: "Downloads of the missing packs of a repository, by result: ok, or the error."}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "packhorse_store_hydrate_seconds",
			Help:    "Duration of successful downloads of a repository's missing packs.",
			Buckets: []float64{.01, .03, .1, .3, 1, 3, 10, 30, 100, 300, 1000}}),
		downloaded: prometheus.NewCounter(prometheus.CounterOpts{Name: "packhorse_store_hydrate_bytes_total",
			Help: "Bytes that downloads of packs and LFS objects wrote to disk."}),
		bytes: prometheus.NewGauge(prometheus.GaugeOpts{Name: "packhorse_store_cache_bytes",
			Help: "Bytes of local packs and LFS objects, including those that are being downloaded."}),
		evictions: prometheus.NewCounter(prometheus.CounterOpts{Name: "packhorse_store_evictions_total",
			Help: "Repositories whose packs were removed to make room."}),
		evictedFiles: prometheus.NewCounter(prometheus.CounterOpts{Name: "packhorse_store_evicted_objects_total",
			Help: "LFS objects that were removed to make room."}),
		damaged: prometheus.NewCounter(prometheus.CounterOpts{Name: "packhorse_store_damaged_packs_total",
			Help: "Local packs that differed from their checksums and were downloaded again."}),
	}
}

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.hydrations, m.seconds, m.downloaded, m.bytes, m.evictions, m.evictedFiles, m.damaged}
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
