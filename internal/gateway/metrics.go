package gateway

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// Metrics counts requests and bytes.
type Metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	stages   *prometheus.HistogramVec
	served   prometheus.Counter
	kernel   prometheus.Counter
	user     prometheus.Counter
	copies   *prometheus.CounterVec
}

var latencyBuckets = []float64{.0001, .0003, .001, .003, .01, .03, .1, .3, 1, 3, 10, 30, 100}

// NewMetrics makes the gateway's metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_requests_total", Help: "Requests by operation and result (ok, or the kind of error).",
		}, []string{"operation", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "packhorse_request_seconds", Help: "Time from a request's header to the end of its answer.", Buckets: latencyBuckets,
		}, []string{"operation"}),
		stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "packhorse_stage_seconds",
			Help:    "Time of each stage of a fetch: parse, negotiate, wait (for a slot), first_byte (from the request's begin), copy.",
			Buckets: latencyBuckets,
		}, []string{"stage"}),
		served: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_served_bytes_total", Help: "Bytes of answers to Git requests.",
		}),
		copies: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_copy_bytes_total", Help: "Bytes of answers by the way they took: copied by the kernel, or through user space.",
		}, []string{"path"}),
	}
	m.kernel, m.user = m.copies.WithLabelValues("kernel"), m.copies.WithLabelValues("user")
	return m
}

// Collectors lists the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.seconds, m.stages, m.served, m.copies}
}

// Copies is packhorse_copy_bytes_total, for others in the process that move bytes of answers.
func (m *Metrics) Copies() *prometheus.CounterVec { return m.copies }

func (m *Metrics) countBytes(kernel, user int64) {
	m.served.Add(float64(kernel + user))
	m.kernel.Add(float64(kernel))
	m.user.Add(float64(user))
}

func (m *Metrics) countRequest(op operation, result string, took time.Duration) {
	m.requests.WithLabelValues(string(op), result).Inc()
	m.seconds.WithLabelValues(string(op)).Observe(took.Seconds())
}

func (m *Metrics) countStages(o protocol.Outcome) {
	if o.Pack == "" {
		return
	}
	for _, s := range [...]struct {
		name string
		took time.Duration
	}{{"parse", o.Parse}, {"negotiate", o.Negotiate}, {"wait", o.Wait}, {"first_byte", o.FirstByte}, {"copy", o.Copy}} {
		m.stages.WithLabelValues(s.name).Observe(s.took.Seconds())
	}
}
