package app

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Metrics counts requests for the application. The labels are pools and workers of the configuration.
type Metrics struct {
	queue, service             *prometheus.HistogramVec
	refused, answers, failures *prometheus.CounterVec
	slots, busy, queued        *prometheus.Desc
	workerUp, outOfService     *prometheus.Desc

	mu    sync.Mutex
	proxy *Proxy // whose workers and queues are reported
}

var latencyBuckets = []float64{.0001, .0003, .001, .003, .01, .03, .1, .3, 1, 3, 10, 30, 100}

// NewMetrics makes the proxy's metrics. A nil Registerer is valid.
func NewMetrics(r prometheus.Registerer) *Metrics {
	with := promauto.With(r)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return with.NewCounterVec(prometheus.CounterOpts{Name: "packhorse_app_" + name, Help: help}, labels)
	}
	seconds := func(name, help string) *prometheus.HistogramVec {
		return with.NewHistogramVec(prometheus.HistogramOpts{Name: "packhorse_app_" + name, Help: help,
			Buckets: latencyBuckets}, []string{"pool"})
	}
	gauge := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("packhorse_app_"+name, help, labels, nil)
	}
	m := &Metrics{
		queue: seconds("queue_seconds", "Time that requests waited for a worker, by pool."),
		service: seconds("service_seconds",
			"Time from the choice of a worker until it had sent its response, by pool."),
		refused: counter("refused_total", "Requests that got no worker, by pool and reason: full (too many wait), late (the "+
			"wait was too long), no_worker (none is available), left (the client disconnected).", "pool", "reason"),
		answers: counter("answers_total", "Responses of workers, by pool and class of status (2xx).", "pool", "status"),
		failures: counter("worker_failures_total",
			"Requests that a worker failed: no connection, an incomplete response, or a timeout.", "worker"),
		workerUp: gauge("worker_up", "Whether a worker is given requests: 1, or 0 if it is down, not ready or drained.",
			"worker", "pool"),
		slots:  gauge("slots", "Slots of the workers that are given requests.", "pool"),
		busy:   gauge("slots_busy", "Slots that are taken.", "pool"),
		queued: gauge("queued", "Requests that wait for a worker.", "pool"),
		outOfService: gauge("out_of_service",
			"Workers out of service, as a part of how many may be so at the same time. Above 1 there are too many.", "pool"),
	}
	if r != nil {
		r.MustRegister(m)
	}
	return m
}

// poolCounts are the series of a pool.
type poolCounts struct {
	queue, service prometheus.Observer
	answers        [6]prometheus.Counter // by the first digit of the status
}

func (m *Metrics) ofPool(name string) *poolCounts {
	c := &poolCounts{queue: m.queue.WithLabelValues(name), service: m.service.WithLabelValues(name)}
	for i, status := range [6]string{"other", "1xx", "2xx", "3xx", "4xx", "5xx"} {
		c.answers[i] = m.answers.WithLabelValues(name, status)
	}
	return c
}

func (c *poolCounts) answered(status int) {
	if status /= 100; status < 1 || status > 5 {
		status = 0
	}
	c.answers[status].Inc()
}

// countRefused counts a request that got no worker.
func (m *Metrics) countRefused(pool string, err error, waited, limit time.Duration) {
	reason := "full"
	switch fault.KindOf(err) {
	case fault.Unavailable:
		reason = "no_worker"
	case fault.Cancelled, fault.Deadline:
		reason = "left"
	case fault.Exhausted:
		if limit > 0 && waited >= limit {
			reason = "late"
		}
	}
	m.refused.WithLabelValues(pool, reason).Inc()
}

// forgetPool drops the series of a pool that is gone.
func (m *Metrics) forgetPool(name string) {
	m.queue.DeleteLabelValues(name)
	m.service.DeleteLabelValues(name)
	m.refused.DeletePartialMatch(prometheus.Labels{"pool": name})
	m.answers.DeletePartialMatch(prometheus.Labels{"pool": name})
}

// observe sets the proxy whose workers and queues are reported.
func (m *Metrics) observe(p *Proxy) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.proxy = p
}

// Describe is a prometheus.Collector's.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.slots, m.busy, m.queued, m.workerUp, m.outOfService} {
		out <- d
	}
}

// Collect is a prometheus.Collector's.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.mu.Lock()
	p := m.proxy
	m.mu.Unlock()
	if p == nil {
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pool := range p.table.Load().pools {
		var slots, busy, away int
		for _, w := range pool.workers {
			given := 0.0
			if w.serves() {
				given = 1
				slots += w.slots
			} else {
				away++
			}
			busy += int(w.requests.Load())
			gauge(m.workerUp, given, w.name, pool.name)
		}
		gauge(m.slots, float64(slots), pool.name)
		gauge(m.busy, float64(busy), pool.name)
		gauge(m.queued, float64(pool.scheduler.Queued()), pool.name)
		gauge(m.outOfService, float64(away)/float64(pool.allowed()), pool.name)
	}
}
