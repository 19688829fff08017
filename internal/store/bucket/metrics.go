package bucket

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are the metrics of requests to the object storage.
type Metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	bytes    *prometheus.CounterVec

	sent, received prometheus.Counter // of bytes
}

// NewMetrics creates the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	with := promauto.With(r)
	m := &Metrics{
		requests: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_store_requests_total",
			Help: "Requests to the object storage by operation (create, get, range, put, copy, list, delete, other) and code: " +
				"the HTTP status, or error if there was no answer. Retries count. 429 and 503 mean that the storage throttles.",
		}, []string{"operation", "code"}),
		seconds: with.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "packhorse_store_request_seconds",
			Help:    "Time from the start of a request to the object storage to the header of its answer, by operation.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 30},
		}, []string{"operation"}),
		bytes: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_store_bytes_total",
			Help: "Bytes of bodies exchanged with the object storage, by direction: sent or received.",
		}, []string{"direction"}),
	}
	m.sent, m.received = m.bytes.WithLabelValues("sent"), m.bytes.WithLabelValues("received")
	return m
}
