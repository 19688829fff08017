package store

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// Metrics are the metrics of a Store. They are safe for concurrent use.
type Metrics struct {
	checks *prometheus.CounterVec

	appends       *prometheus.CounterVec
	appendSeconds prometheus.Histogram
	batch         prometheus.Histogram

	events    *prometheus.CounterVec
	stale     prometheus.Counter
	broken    prometheus.Counter
	reachable prometheus.Gauge
}

// NewMetrics creates the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	with := promauto.With(r)
	m := &Metrics{
		checks: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_store_checks_total",
			Help: "Freshness checks by result: current (nothing changed), changed, joined (shared the check of another " +
				"request), and failed.",
		}, []string{"result"}),
		appends: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_store_appends_total",
			Help: "Attempts to append a record to a repository's log by result: won, lost (another node was faster), and " +
				"unknown (not decided in time). Attempts of several tries also count as unclear.",
		}, []string{"result"}),
		appendSeconds: with.NewHistogram(prometheus.HistogramOpts{
			Name: "packhorse_store_append_seconds", Help: "Duration of attempts to append a record.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
		batch: with.NewHistogram(prometheus.HistogramOpts{
			Name: "packhorse_store_append_batch", Help: "Number of pushes in one record.",
			Buckets: []float64{1, 2, 4, 8, 16, 32, 64},
		}),
		events: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_events_total", Help: "Events that this node has recorded, by kind.",
		}, []string{"kind"}),
		stale: with.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_store_stale_answers_total",
			Help: "Answers from local data because the store could not be reached; see store.stale_if_error.",
		}),
		broken: with.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_store_broken_promises_total",
			Help: "Proofs that the store accepted two writers for one record, or lost records. The repository does not accept " +
				"pushes on this node any more.",
		}),
		reachable: with.NewGauge(prometheus.GaugeOpts{
			Name: "packhorse_store_reachable", Help: "1 if the last check of the store succeeded, otherwise 0.",
		}),
	}
	for _, result := range []string{"won", "lost", "unknown", "unclear"} { // alerts see the first one
		m.appends.WithLabelValues(result)
	}
	return m
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
