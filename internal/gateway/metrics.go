package gateway

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/observe/sli"
)

// Metrics counts requests and bytes.
type Metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	stages   *prometheus.HistogramVec
	served   prometheus.Counter
	links    inflight.Links
}

var latencyBuckets = []float64{.0001, .0003, .001, .003, .01, .03, .1, .3, 1, 3, 10, 30, 100}

// NewMetrics makes the gateway's metrics.
func NewMetrics() *Metrics {
	return &Metrics{
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
	}
}

// Collectors lists the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.seconds, m.stages, m.served}
}

func (m *Metrics) countRequest(ctx context.Context, op operation, result string, took time.Duration) {
	m.requests.WithLabelValues(string(op), result).Inc()
	m.links.Observe(ctx, m.seconds.WithLabelValues(string(op)), took)
}

// judge has a request judged by what its class promises.
func (o *Options) judge(op operation, result string, took time.Duration, outcome *node.Outcome) {
	class := classOf(op, outcome)
	switch result {
	case "ok":
		if class == sli.Hit || class == sli.Cold {
			took = outcome.FirstByte // the rest takes as long as the client does
		}
		o.SLI.Answered(class, took)
	case fault.Internal.String(), fault.Corrupt.String(), fault.Unavailable.String(), fault.Exhausted.String(), fault.Deadline.String():
		o.SLI.Failed(class)
	}
}

// judgeServed has what the application did with a request judged. An answer that tells of a fault of the worker is none.
func (c *call) judgeServed(result string) {
	switch s := c.served; {
	case result == "ok" && s.Status < 500:
		c.SLI.Answered(s.Class, s.Took)
	case result != fault.Invalid.String() && result != fault.Cancelled.String():
		c.SLI.Failed(s.Class)
	}
}

// classOf is the class of a request, as far as it came.
func classOf(op operation, outcome *node.Outcome) sli.Class {
	switch op {
	case opAdvertise, opLsRefs, opInfo, opBundles:
		return sli.Small
	case opFetch:
		switch outcome.Pack {
		case "":
			return sli.Small
		case "hit":
			return sli.Hit
		}
		return sli.Cold
	case opPush:
		return sli.Push
	case opSearch:
		return sli.Search
	case opPage:
		return sli.Page
	case opResolve:
		return sli.Resolve
	}
	return sli.None
}

func (m *Metrics) countStages(o node.Outcome) {
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
