package resolve

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are the metrics of look-ups, by tier.
type Metrics struct {
	compute  prometheus.Histogram
	stale    prometheus.Histogram
	failures *prometheus.CounterVec
	bypassed prometheus.Gauge

	hit, missed, redisHit, redisMissed, nodeHit, nodeMissed prometheus.Counter
}

// NewMetrics creates the metrics, which Tiers and their Redis share.
func NewMetrics(r prometheus.Registerer) *Metrics {
	with := promauto.With(r)
	lookups := with.NewCounterVec(prometheus.CounterOpts{
		Name: "packhorse_resolve_lookups_total",
		Help: "Revisions looked up, by tier (memory, redis, node) and result (hit, miss). A miss of the node is a revision " +
			"that does not exist.",
	}, []string{"tier", "result"})
	return &Metrics{
		compute: with.NewHistogram(prometheus.HistogramOpts{
			Name:    "packhorse_resolve_compute_seconds",
			Help:    "Time of look-ups after misses in memory: Redis, the node, and repetitions because refs changed.",
			Buckets: []float64{2e-5, 5e-5, .0001, .00025, .0005, .001, .005, .025, .1, 1, 10},
		}),
		stale: with.NewHistogram(prometheus.HistogramOpts{
			Name:    "packhorse_resolve_staleness_seconds",
			Help:    "Maximum time in which stale answers were possible, for each change of refs; 0 if an event reported it.",
			Buckets: []float64{0, .001, .01, .1, 1, 5, 15, 30, 60, 120, 300},
		}),
		failures: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_resolve_redis_failures_total",
			Help: "Failures of Redis: read, write, or probe while it is bypassed.",
		}, []string{"operation"}),
		bypassed: with.NewGauge(prometheus.GaugeOpts{Name: "packhorse_resolve_redis_bypassed",
			Help: "Whether Redis is bypassed because it failed: 1, or 0."}),

		hit:         lookups.WithLabelValues("memory", "hit"),
		missed:      lookups.WithLabelValues("memory", "miss"),
		redisHit:    lookups.WithLabelValues("redis", "hit"),
		redisMissed: lookups.WithLabelValues("redis", "miss"),
		nodeHit:     lookups.WithLabelValues("node", "hit"),
		nodeMissed:  lookups.WithLabelValues("node", "miss"),
	}
}
