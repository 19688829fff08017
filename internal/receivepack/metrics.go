package receivepack

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Metrics counts pushes.
type Metrics struct {
	pushes  *prometheus.CounterVec
	failed  *prometheus.CounterVec
	seconds prometheus.Histogram
	updates *prometheus.CounterVec
	bytes   prometheus.Counter
	swept   *prometheus.CounterVec
}

// NewMetrics makes counters that start at zero.
func NewMetrics() *Metrics {
	m := &Metrics{
		pushes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_pushes_total", Help: "Pushes by result: ok if all their refs were changed, else the kind of error.",
		}, []string{"result"}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_push_failures_total",
			Help: "Pushes of which at least one ref was not changed, by reason. Refusals: hook, fsck, policy, conflict, too_large, incomplete, damaged, " +
				"disabled, busy, timeout, cancelled. Faults of the server: disk_full, permission, read_only, memory, storage, internal.",
		}, []string{"reason"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "packhorse_push_seconds", Help: "Time of pushes, from the first byte of the request to the last of the report.",
			Buckets: []float64{.01, .03, .1, .3, 1, 3, 10, 30, 100, 300, 1000},
		}),
		updates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_push_updates_total", Help: "Refs that pushes asked to change: changed, or refused.",
		}, []string{"result"}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{Name: "packhorse_push_bytes_total", Help: "Bytes that git was given of pushes."}),
		swept: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_push_swept_total",
			Help: "What was cleared away after pushes that died: lock, keep (of a pack; also after others), quarantine, push (an atomic one, completed), note (set aside).",
		}, []string{"what"}),
	}
	for _, reason := range reasons {
		m.failed.WithLabelValues(reason)
	}
	return m
}

// Collectors lists what to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.pushes, m.failed, m.seconds, m.updates, m.bytes, m.swept}
}

func (m *Metrics) done(err error, reason string, took time.Duration) {
	result := "ok"
	if err != nil {
		result = fault.KindOf(err).String()
		m.failed.WithLabelValues(reason).Inc()
	}
	m.pushes.WithLabelValues(result).Inc()
	m.seconds.Observe(took.Seconds())
}
