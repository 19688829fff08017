package search

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of searches and of the index.
type Metrics struct {
	searches      *prometheus.CounterVec
	seconds       prometheus.Histogram
	linkSeconds   prometheus.Histogram
	results       prometheus.Counter
	bytes         prometheus.Counter
	jobs          *prometheus.CounterVec
	jobSeconds    *prometheus.HistogramVec
	documents     prometheus.Counter
	documentBytes prometheus.Counter
	freshSeconds  prometheus.Histogram
	deaths        *prometheus.CounterVec
	running       prometheus.Gauge
	unwatched     prometheus.Gauge
}

// NewMetrics returns metrics that are not yet registered.
func NewMetrics() *Metrics {
	return &Metrics{
		searches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_search_total", Help: "Searches, by result: ok, or the kind of error.",
		}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "packhorse_search_seconds",
			Help:    "Duration of searches, including the time that clients need to read the results.",
			Buckets: []float64{.001, .003, .01, .03, .1, .3, 1, 3, 10, 30},
		}),
		linkSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "packhorse_search_link_seconds",
			Help:    "Time of a search in the protocol with the search worker, without the time of the worker itself.",
			Buckets: []float64{.00003, .0001, .0003, .001, .003, .01, .03, .1, 1},
		}),
		results: prometheus.NewCounter(prometheus.CounterOpts{Name: "packhorse_search_results_total",
			Help: "Results of searches: files and repositories."}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{Name: "packhorse_search_result_bytes_total",
			Help: "Bytes of results from the search worker."}),
		jobs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_search_index_jobs_total",
			Help: "Indexing jobs by kind (full, delta, or compact: the rebuild of a slow index) and result: ok, failed, " +
				"cancelled, or rebuild (a full job is necessary).",
		}, []string{"kind", "result"}),
		jobSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "packhorse_search_index_seconds", Help: "Duration of indexing jobs.",
			Buckets: []float64{.03, .1, .3, 1, 3, 10, 30, 100, 300, 1000},
		}, []string{"kind"}),
		documents: prometheus.NewCounter(prometheus.CounterOpts{Name: "packhorse_search_indexed_files_total",
			Help: "Indexed files."}),
		documentBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_search_indexed_bytes_total", Help: "Bytes of indexed files.",
		}),
		freshSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "packhorse_search_freshness_seconds",
			Help:    "Time from a change of an indexed repository to its new index.",
			Buckets: []float64{.1, .3, 1, 2, 5, 10, 30, 100, 300, 1000},
		}),
		deaths: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_search_process_deaths_total",
			Help: "Worker processes that ended unexpectedly, by work: search, index.",
		}, []string{"work"}),
		running: prometheus.NewGauge(prometheus.GaugeOpts{Name: "packhorse_search_running", Help: "Running searches."}),
		unwatched: prometheus.NewGauge(prometheus.GaugeOpts{Name: "packhorse_search_unwatched_repositories",
			Help: "Repositories that are checked at intervals, because their node has reached its limit of watched ones."}),
	}
}

// Collectors returns the collectors to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.searches, m.seconds, m.linkSeconds, m.results, m.bytes, m.jobs, m.jobSeconds, m.documents, m.documentBytes,
		m.freshSeconds, m.deaths, m.running, m.unwatched,
	}
}
