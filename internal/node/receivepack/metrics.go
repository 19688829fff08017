package receivepack

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// metrics counts pushes.
type metrics struct {
	pushes    *prometheus.CounterVec
	failed    *prometheus.CounterVec
	seconds   prometheus.Histogram
	recovered *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	with := promauto.With(r)
	m := &metrics{
		pushes: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_pushes_total", Help: "Pushes by result: ok if all refs were changed, otherwise the kind of error.",
		}, []string{"result"}),
		failed: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_push_failures_total",
			Help: "Pushes of which at least one ref was not changed, by reason. Refusals: hook, fsck, policy, conflict, " +
				"lfs_missing, quota, too_large, incomplete, damaged, disabled, busy, timeout, cancelled. Faults of the server: " +
				"locked, disk_full, permission, read_only, memory, storage, internal.",
		}, []string{"reason"}),
		seconds: with.NewHistogram(prometheus.HistogramOpts{
			Name:    "packhorse_push_seconds",
			Help:    "Duration of pushes, from the first byte of the request to the last byte of the report.",
			Buckets: []float64{.01, .03, .1, .3, 1, 3, 10, 30, 100, 300, 1000},
		}),
		recovered: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_push_swept_total",
			Help: "Cleanup after killed pushes, by kind: files removed (lock, keep, quarantine), atomic pushes completed " +
				"(push), and unreadable journal files moved aside (note). Successful pushes count a keep, too.",
		}, []string{"kind"}),
	}
	for _, reason := range reasons {
		m.failed.WithLabelValues(reason)
	}
	return m
}

func (m *metrics) observe(err error, reason string, took time.Duration) {
	result := "ok"
	if err != nil {
		result = fault.KindOf(err).String()
		m.failed.WithLabelValues(reason).Inc()
	}
	m.pushes.WithLabelValues(result).Inc()
	m.seconds.Observe(took.Seconds())
}
