package packcache

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	dto "github.com/prometheus/client_model/go"
)

// metrics counts the work of the cache. It is safe for concurrent use.
type metrics struct {
	requests  *prometheus.CounterVec
	evictions *prometheus.CounterVec
	degraded  *prometheus.CounterVec
	verified  *prometheus.CounterVec
	bytes     prometheus.Gauge
	entries   prometheus.Gauge
	written   prometheus.Counter
	generated prometheus.Counter
	seconds   prometheus.Histogram

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

func newMetrics(r prometheus.Registerer) *metrics {
	with := promauto.With(r)
	vec := func(name, help, label string) *prometheus.CounterVec {
		return with.NewCounterVec(prometheus.CounterOpts{Name: "packhorse_cache_" + name, Help: help}, []string{label})
	}
	m := &metrics{
		requests: vec("requests_total", "Requested packs: complete in the cache (hit), made (miss), or being made for "+
			"another reader (follow).", "result"),
		evictions: vec("evictions_total", "Entries removed.", "reason"),
		degraded:  vec("degraded_total", "Packs that were sent without being cached.", "cause"),
		verified: vec("verify_total", "Entries of an earlier run, or modified by another program, that were compared with "+
			"their checksums.", "result"),
		bytes: with.NewGauge(prometheus.GaugeOpts{Name: "packhorse_cache_bytes",
			Help: "Bytes on disk in whole blocks: entries, fills, and removed files that are still read."}),
		entries: with.NewGauge(prometheus.GaugeOpts{Name: "packhorse_cache_entries", Help: "Complete entries."}),
		written: with.NewCounter(prometheus.CounterOpts{Name: "packhorse_cache_written_bytes_total",
			Help: "Bytes written to entry files."}),
		generated: with.NewCounter(prometheus.CounterOpts{Name: "packhorse_cache_generated_bytes_total",
			Help: "Framed pack bytes taken from the source behind the cache."}),
		seconds: with.NewHistogram(prometheus.HistogramOpts{Name: "packhorse_cache_fill_seconds",
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
