package receivepack

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Metrics counts pushes.
type Metrics struct {
	pushes    *prometheus.CounterVec
	failed    *prometheus.CounterVec
	seconds   prometheus.Histogram
	updates   *prometheus.CounterVec
	bytes     prometheus.Counter
	recovered *prometheus.CounterVec
}

// NewMetrics creates the metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		pushes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_pushes_total", Help: "Pushes by result: ok if all refs were changed, otherwise the kind of error.",
		}, []string{"result"}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_push_failures_total",
			Help: "Pushes of which at least one ref was not changed, by reason. Refusals: hook, fsck, policy, conflict, " +
				"lfs_missing, quota, too_large, incomplete, damaged, disabled, busy, timeout, cancelled. Faults of the server: " +
				"locked, disk_full, permission, read_only, memory, storage, internal.",
		}, []string{"reason"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "packhorse_push_seconds",
			Help:    "Duration of pushes, from the first byte of the request to the last byte of the report.",
			Buckets: []float64{.01, .03, .1, .3, 1, 3, 10, 30, 100, 300, 1000},
		}),
		updates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_push_updates_total", Help: "Ref updates in pushes by result: changed, refused or unknown.",
		}, []string{"result"}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{Name: "packhorse_push_bytes_total",
			Help: "Bytes of push requests that Git has read."}),
		recovered: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_push_swept_total",
			Help: "Cleanup after killed pushes: files removed (lock, keep, quarantine), atomic pushes completed (push), and " +
				"unreadable journal files moved aside (note). Counts keep also after successful pushes.",
		}, []string{"what"}),
	}
	for _, reason := range reasons {
		m.failed.WithLabelValues(reason)
	}
	return m
}

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.pushes, m.failed, m.seconds, m.updates, m.bytes, m.recovered}
}

func (m *Metrics) observe(err error, reason string, took time.Duration) {
	result := "ok"
	if err != nil {
		result = fault.KindOf(err).String()
		m.failed.WithLabelValues(reason).Inc()
	}
	m.pushes.WithLabelValues(result).Inc()
	m.seconds.Observe(took.Seconds())
}
