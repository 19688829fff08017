package packcache

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Metrics counts the work of the cache. It is safe for concurrent use.
type Metrics struct {
	requests  *prometheus.CounterVec
	evictions *prometheus.CounterVec
	degraded  *prometheus.CounterVec
	verified  *prometheus.CounterVec

	bytes, entries, fills, indexBytes, borrowed prometheus.Gauge

	written, cancelled, generated prometheus.Counter

	seconds prometheus.Histogram

	// The results of a request, looked up once.
	hit, miss, follow prometheus.Counter
}

// Why an entry left the cache.
const (
	evictSize      = "size"      // the byte budget
	evictSpace     = "space"     // the free-space floor, or a full disk
	evictIdle      = "idle"      // not requested for MaxIdle
	evictProbation = "probation" // not requested twice
	evictCorrupt   = "corrupt"   // could not be read, or not trusted
	evictDropped   = "dropped"   // Drop and DropAll
	evictDamaged   = "damaged"   // its repository is damaged
)

// NewMetrics creates the metrics.
func NewMetrics() *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "packhorse_cache_" + name, Help: help})
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "packhorse_cache_" + name, Help: help},
			[]string{label})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "packhorse_cache_" + name, Help: help})
	}
	m := &Metrics{
		requests: vec("requests_total",
			"Requested packs: complete in the cache (hit), made (miss), or being made for another "+
				"reader (follow).", "result"),
		evictions: vec("evictions_total", "Entries removed.", "reason"),
		degraded:  vec("degraded_total", "Packs that were sent without being cached.", "cause"),
		verified: vec("verify_total",
			"Entries of an earlier run, or modified by another program, that were compared with their "+
				"checksums.",
			"result"),
		bytes: gauge("bytes",
			"Bytes on disk in whole blocks: entries, fills, and removed files that are still read."),
		entries:    gauge("entries", "Complete entries."),
		indexBytes: gauge("index_bytes", "The part of packhorse_cache_bytes that is for indexes of complete packs."),
		borrowed:   gauge("borrowed_entries", "Entries that are read to make another pack, and cannot be evicted."),
		fills:      gauge("fills_in_flight", "Packs being made."),
		written:    counter("written_bytes_total", "Bytes written to entry files."),
		cancelled: counter("cancelled_bytes_total",
			"Bytes of files removed on probation or before they were complete. Few of them were "+
				"written to the disk."),
		generated: counter("generated_bytes_total", "Framed pack bytes taken from the source behind the cache."),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "packhorse_cache_fill_seconds",
			Help:    "Time to make a pack, from the request to its last byte.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 10)}),
	}
	for _, r := range []string{evictSize, evictSpace, evictIdle, evictProbation, evictCorrupt, evictDropped,
		evictDamaged} {
		m.evictions.WithLabelValues(r)
	}
	m.hit, m.miss, m.follow = m.requests.WithLabelValues("hit"), m.requests.WithLabelValues("miss"),
		m.requests.WithLabelValues("follow")
	return m
}

// counted returns the value of a counter.
func counted(c prometheus.Counter) int64 {
	var m dto.Metric
	if c.Write(&m) != nil {
		return 0
	}
	return int64(m.GetCounter().GetValue())
}

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.evictions, m.degraded, m.verified, m.bytes, m.entries, m.fills,
		m.indexBytes, m.borrowed,
		m.written, m.cancelled, m.generated, m.seconds}
}
