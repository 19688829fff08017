package resolve

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Names of tiers in labels.
const (
	tierMemory = "memory"
	tierRedis  = "redis"
	tierNode   = "node"
)

const (
	lookupsName = "packhorse_resolve_lookups_total"
	lookupsHelp = "Revisions looked up, by tier (memory, redis, node) and result: hit or miss; a miss of the node is a " +
		"revision that there is not."
)

// Metrics are the metrics of look-ups, by tier.
type Metrics struct {
	hits     stripes // of the memory tier
	lookups  *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	compute  prometheus.Histogram
	stale    prometheus.Histogram
	shared   prometheus.Counter
	dropped  *prometheus.CounterVec
	events   *prometheus.CounterVec
	unknown  prometheus.Counter
	entries  prometheus.Gauge
	repos    prometheus.Gauge
	watched  prometheus.Gauge
	failures *prometheus.CounterVec
	bypassed prometheus.Gauge

	missed, redisHit, redisMissed, nodeHit, nodeMissed prometheus.Counter
	memorySeconds, redisSeconds, nodeSeconds           prometheus.Observer
	lookup                                             *prometheus.Desc // of lookups
}

// NewMetrics returns metrics that are not yet registered.
func NewMetrics() *Metrics {
	m := &Metrics{
		lookups: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: lookupsName,
			Help: lookupsHelp,
		}, []string{"tier", "result"}),
		lookup: prometheus.NewDesc(lookupsName, lookupsHelp, []string{"tier", "result"}, nil),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "packhorse_resolve_lookup_seconds",
			Help:    "Time of a look-up in a tier: memory, one of 1,024, by revision; redis and node by batch.",
			Buckets: []float64{1e-7, 2.5e-7, 5e-7, 1e-6, 5e-6, 2e-5, 5e-5, .0001, .00025, .0005, .001, .005, .025, .1, 1, 10},
		}, []string{"tier"}),
		compute: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "packhorse_resolve_compute_seconds",
			Help:    "Time of look-ups after misses in memory: Redis, the node, and repetitions because refs changed.",
			Buckets: []float64{2e-5, 5e-5, .0001, .00025, .0005, .001, .005, .025, .1, 1, 10},
		}),
		stale: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "packhorse_resolve_staleness_seconds",
			Help:    "Maximum time in which stale answers were possible, for each change of refs; 0 if an event reported it.",
			Buckets: []float64{0, .001, .01, .1, 1, 5, 15, 30, 60, 120, 300},
		}),
		shared: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_resolve_shared_total",
			Help: "Revisions answered by a look-up that was already running.",
		}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_resolve_dropped_total",
			Help: "Answers that were not cached: outdated (old) or not comparable (unsure). In Redis: invalid (garbage), " +
				"of another version (version), or the queue was full (queue).",
		}, []string{"why"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_resolve_events_total",
			Help: "Events of nodes about cached repositories: same (nothing new), change, gone, other (new epoch or " +
				"incarnation).",
		}, []string{"kind"}),
		unknown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_resolve_unwatched_total",
			Help: "Repositories that were not watched because of the limit. Their answers are cached for the TTL.",
		}),
		entries: prometheus.NewGauge(prometheus.GaugeOpts{Name: "packhorse_resolve_entries",
			Help: "Answers in the memory tier."}),
		repos: prometheus.NewGauge(prometheus.GaugeOpts{Name: "packhorse_resolve_repositories",
			Help: "Repositories in the memory tier."}),
		watched: prometheus.NewGauge(prometheus.GaugeOpts{Name: "packhorse_resolve_watched",
			Help: "Repositories watched by the memory tier."}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_resolve_redis_failures_total",
			Help: "Failures of Redis: read, write, or probe while it is bypassed.",
		}, []string{"what"}),
		bypassed: prometheus.NewGauge(prometheus.GaugeOpts{Name: "packhorse_resolve_redis_bypassed",
			Help: "Whether Redis is bypassed because it failed: 1, or 0."}),
	}
	m.missed = m.lookups.WithLabelValues(tierMemory, "miss")
	m.redisHit, m.redisMissed = m.lookups.WithLabelValues(tierRedis, "hit"), m.lookups.WithLabelValues(tierRedis, "miss")
	m.nodeHit, m.nodeMissed = m.lookups.WithLabelValues(tierNode, "hit"), m.lookups.WithLabelValues(tierNode, "miss")
	m.memorySeconds, m.redisSeconds = m.seconds.WithLabelValues(tierMemory), m.seconds.WithLabelValues(tierRedis)
	m.nodeSeconds = m.seconds.WithLabelValues(tierNode)
	return m
}

// Collectors returns the collectors to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		lookupCollector{m}, m.seconds, m.compute, m.stale, m.shared, m.dropped, m.events, m.unknown, m.entries, m.repos,
		m.watched,
		m.failures, m.bypassed,
	}
}

// stripes is a counter without contention between CPUs.
type stripes [64]struct {
	n atomic.Uint64
	_ [120]byte
}

// sampled is the number of memory look-ups of which one is timed, because reading the clock costs more than a look-up.
const sampled = 1024

// count adds one to the stripe of a random number.
func (s *stripes) count(random uint32) { s[random%uint32(len(s))].n.Add(1) }

func (s *stripes) sum() (sum uint64) {
	for i := range s {
		sum += s[i].n.Load()
	}
	return sum
}

// begin returns a random number for a memory look-up, and its start if it is timed.
func (m *Metrics) begin() (random uint32, began time.Time) {
	random = rand.Uint32()
	if random/64%sampled == 0 {
		began = time.Now()
	}
	return random, began
}

func (m *Metrics) hit(random uint32, began time.Time) {
	m.hits.count(random)
	if !began.IsZero() {
		m.memorySeconds.Observe(time.Since(began).Seconds())
	}
}

// lookupCollector reports look-ups, including hits of the memory tier.
type lookupCollector struct{ *Metrics }

// Describe implements prometheus.Collector.
func (c lookupCollector) Describe(out chan<- *prometheus.Desc) { c.lookups.Describe(out) }

// Collect implements prometheus.Collector.
func (c lookupCollector) Collect(out chan<- prometheus.Metric) {
	c.lookups.Collect(out)
	out <- prometheus.MustNewConstMetric(c.lookup, prometheus.CounterValue, float64(c.hits.sum()), tierMemory, "hit")
}
