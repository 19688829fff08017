package store

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// Metrics are the metrics of a Store. They are safe for concurrent use.
type Metrics struct {
	checks       *prometheus.CounterVec
	checkSeconds prometheus.Histogram
	behind       prometheus.Histogram

	appends       *prometheus.CounterVec
	appendSeconds prometheus.Histogram
	batch         prometheus.Histogram

	lookups   *prometheus.CounterVec
	stale     prometheus.Counter
	broken    prometheus.Counter
	hints     *prometheus.CounterVec
	reachable prometheus.Gauge

	store                   atomic.Pointer[Store] // nil: not opened yet
	known, packs, condemned prometheus.GaugeFunc  // computed from the repositories of the store

	gcObjects   prometheus.Counter
	gcBytes     prometheus.Counter
	checkpoints *prometheus.CounterVec
	compactions *prometheus.CounterVec
}

// NewMetrics creates the metrics.
func NewMetrics() *Metrics {
	seconds := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	m := &Metrics{
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_store_looks_total",
			Help: "Freshness checks by result: current (nothing changed), changed, joined (shared the check of another " +
				"request), and failed.",
		}, []string{"result"}),
		checkSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "packhorse_store_look_seconds", Help: "Duration of freshness checks, without those that joined another.",
			Buckets: seconds,
		}),
		behind: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "packhorse_store_records_behind",
			Help:    "Number of new records that a freshness check found, if it found any.",
			Buckets: []float64{1, 2, 4, 8, 16, 64, 256, 1024, 4096},
		}),
		appends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_store_appends_total",
			Help: "Attempts to append a record to a repository's log by result: won, lost (another node was faster), and " +
				"unknown (not decided in time). Attempts of several tries also count as unclear.",
		}, []string{"result"}),
		appendSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "packhorse_store_append_seconds", Help: "Duration of attempts to append a record.", Buckets: seconds,
		}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "packhorse_store_append_batch", Help: "Number of pushes in one record.",
			Buckets: []float64{1, 2, 4, 8, 16, 32, 64},
		}),
		lookups: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_store_name_lookups_total",
			Help: "Look-ups of repository paths in the store by result: found, not_found, and other errors. Paths that the " +
				"node knows do not count.",
		}, []string{"result"}),
		stale: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_store_stale_answers_total",
			Help: "Answers from local data because the store could not be reached; see store.stale_if_error.",
		}),
		broken: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_store_broken_promises_total",
			Help: "Proofs that the store accepted two writers for one record, or lost records. The repository does not accept " +
				"pushes on this node any more.",
		}),
		hints: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_store_hints_total",
			Help: "Hints of other nodes about pushes by result: current (known already), checked, and dropped (too many).",
		}, []string{"result"}),
		reachable: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "packhorse_store_reachable", Help: "1 if the last check of the store succeeded, otherwise 0.",
		}),
		gcObjects: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_store_gc_objects_total",
			Help: "Objects that this node deleted in the store because no repository needs them.",
		}),
		gcBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_store_gc_bytes_total", Help: "Bytes of the objects that this node deleted in the store.",
		}),
		checkpoints: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_store_checkpoints_total",
			Help: "Checkpoints of refs by result: published, dropped (another node was faster), and failed.",
		}, []string{"result"}),
		compactions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_store_compactions_total",
			Help: "Compactions of packs by result: published, unchanged (no better packs), dropped (another node was " +
				"faster), and failed.",
		}, []string{"result"}),
	}
	for _, result := range []string{"won", "lost", "unknown", "unclear"} { // alerts see the first one
		m.appends.WithLabelValues(result)
	}
	m.known = m.gauge("packhorse_store_known_repositories", "Repositories whose latest record is in memory.",
		func(*state) int { return 1 })
	m.packs = m.gauge("packhorse_store_packs", "Packs of the repositories whose latest record is in memory.",
		func(s *state) int { return len(s.record.Packs) })
	m.condemned = m.gauge("packhorse_store_condemned",
		"Objects that are about to be deleted, of the repositories whose latest record is in memory.",
		func(s *state) int { return len(s.record.Condemned) })
	return m
}

// gauge returns a metric that is the sum over the latest known states of all repositories in memory.
func (m *Metrics) gauge(name, help string, of func(*state) int) prometheus.GaugeFunc {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
		sum := 0
		if s := m.store.Load(); s != nil {
			s.known.mu.Lock()
			defer s.known.mu.Unlock()
			for _, r := range s.known.byID {
				if known := r.known(); known != nil {
					sum += of(known)
				}
			}
		}
		return float64(sum)
	})
}

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.checks, m.checkSeconds, m.behind, m.appends, m.appendSeconds, m.batch, m.lookups,
		m.known, m.packs, m.condemned, m.stale, m.broken, m.hints, m.reachable, m.gcObjects, m.gcBytes, m.checkpoints,
		m.compactions}
}

// countAppend counts an attempt to append a record to the log of a repository.
func (m *Metrics) countAppend(attempt *replog.Attempt[*replog.Record], took time.Duration) {
	m.appends.WithLabelValues(attempt.Outcome().String()).Inc()
	if attempt.Tries() > 1 {
		m.appends.WithLabelValues("unclear").Inc()
	}
	m.appendSeconds.Observe(took.Seconds())
	if winner := attempt.Winner(); attempt.Outcome() == replog.Won && len(winner.Pushes) > 0 {
		m.batch.Observe(float64(len(winner.Pushes)))
	}
}
