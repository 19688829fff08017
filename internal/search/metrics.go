package search

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the metrics of searches and of the index.
type metrics struct {
	searches     *prometheus.CounterVec
	seconds      prometheus.Histogram
	jobs         *prometheus.CounterVec
	freshSeconds prometheus.Histogram
	deaths       *prometheus.CounterVec
	running      prometheus.Gauge
	unwatched    prometheus.Gauge
}

func newMetrics(r prometheus.Registerer, e *Engine) *metrics {
	with := promauto.With(r)
	gauge := func(name, help string, labels prometheus.Labels, value func(Status) int) {
		with.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(value(e.Status(nil))) })
	}
	gauge("packhorse_search_up", "Whether the search worker runs: 1, or 0.", nil, func(s Status) int {
		if s.Searching {
			return 1
		}
		return 0
	})
	for state, value := range map[string]func(Status) int{
		stateFresh: func(s Status) int { return s.Fresh }, stateBehind: func(s Status) int { return s.Behind },
		stateWaiting: func(s Status) int { return s.Waiting }, stateEmpty: func(s Status) int { return s.Empty },
		stateTooLarge: func(s Status) int { return s.TooLarge },
		"failed":      func(s Status) int { return s.Failed },
	} {
		gauge("packhorse_search_repositories",
			"Repositories by state: fresh, behind, waiting (no index yet), too_large (not indexed), empty (nothing to "+
				"index). State failed counts those of behind, waiting and too_large whose last job failed.",
			prometheus.Labels{"state": state}, value)
	}
	return &metrics{
		searches: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_search_total", Help: "Searches, by result: ok, or the kind of error.",
		}, []string{"result"}),
		seconds: with.NewHistogram(prometheus.HistogramOpts{
			Name:    "packhorse_search_seconds",
			Help:    "Duration of searches, including the time that clients need to read the results.",
			Buckets: []float64{.001, .003, .01, .03, .1, .3, 1, 3, 10, 30},
		}),
		jobs: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_search_index_jobs_total",
			Help: "Indexing jobs by kind (full, delta, or compact: the rebuild of a slow index) and result: ok, failed, " +
				"cancelled, or rebuild (a full job is necessary).",
		}, []string{"kind", "result"}),
		freshSeconds: with.NewHistogram(prometheus.HistogramOpts{
			Name:    "packhorse_search_freshness_seconds",
			Help:    "Time from a change of an indexed repository to its new index.",
			Buckets: []float64{.1, .3, 1, 2, 5, 10, 30, 100, 300, 1000},
		}),
		deaths: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_search_process_deaths_total",
			Help: "Worker processes that ended unexpectedly, by work: search, index.",
		}, []string{"work"}),
		unwatched: with.NewGauge(prometheus.GaugeOpts{Name: "packhorse_search_unwatched_repositories",
			Help: "Repositories that are checked at intervals, because their node has reached its limit of watched ones."}),
		running: with.NewGauge(prometheus.GaugeOpts{Name: "packhorse_search_running", Help: "Running searches."}),
	}
}
