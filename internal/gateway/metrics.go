package gateway

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// Metrics counts requests and bytes.
type Metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	stages   *prometheus.HistogramVec
	served   prometheus.Counter
	lfsBytes *prometheus.CounterVec
	links    inflight.Exemplars
}

var latencyBuckets = []float64{.0001, .0003, .001, .003, .01, .03, .1, .3, 1, 3, 10, 30, 100}

// NewMetrics creates the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	with := promauto.With(r)
	return &Metrics{
		requests: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_requests_total", Help: "Requests by operation and result (ok, or the kind of error).",
		}, []string{"operation", "result"}),
		seconds: with.NewHistogramVec(prometheus.HistogramOpts{
			Name: "packhorse_request_seconds", Help: "Time from a request's header to the end of its response.",
			Buckets: latencyBuckets,
		}, []string{"operation"}),
		stages: with.NewHistogramVec(prometheus.HistogramOpts{
			Name: "packhorse_stage_seconds",
			Help: "Duration of each stage of a fetch: parse, negotiate, wait (for a slot), " +
				"first_byte (from the start of the request), copy.",
			Buckets: latencyBuckets,
		}, []string{"stage"}),
		served: with.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_served_bytes_total", Help: "Bytes of responses to Git requests.",
		}),
		lfsBytes: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_lfs_bytes_total",
			Help: "Bytes of LFS objects by operation (lfs_download, lfs_upload).",
		}, []string{"operation"}),
	}
}

// count counts a request that has ended.
func (m *Metrics) count(r *Request, result string, took time.Duration) {
	m.requests.WithLabelValues(r.Op.Name, result).Inc()
	m.links.Observe(r.Ctx, m.seconds.WithLabelValues(r.Op.Name), took)
	switch {
	case !r.Op.LFS:
		m.countStages(&r.Outcome.Fetch)
	case r.Op == LFSDownload, r.Op == LFSUpload:
		m.lfsBytes.WithLabelValues(r.Op.Name).Add(float64(r.Outcome.LFS.Bytes))
	}
	if !r.Op.Web {
		m.served.Add(float64(r.Bytes.Sent))
	}
}

func (m *Metrics) countStages(f *node.FetchOutcome) {
	if f.Pack == "" {
		return
	}
	for _, s := range [...]struct {
		name string
		took time.Duration
	}{{"parse", f.Parse}, {"negotiate", f.Negotiate}, {"wait", f.Wait}, {"first_byte", f.FirstByte}, {"copy", f.Copy}} {
		m.stages.WithLabelValues(s.name).Observe(s.took.Seconds())
	}
}

// rate rates the request against the service level of its class.
func (r *Request) rate(result string, took time.Duration) {
	rating := r.Rating
	if rating == nil {
		rating = &Rating{Class: r.Op.Class, Latency: took}
		if r.Op == Fetch && r.Outcome.Fetch.Pack != "" {
			rating.Class, rating.Latency = inflight.ClassCold, r.Outcome.Fetch.FirstByte // the client determines the rest
			if r.Outcome.Fetch.Pack == "hit" {
				rating.Class = inflight.ClassHit
			}
		}
	}
	switch result {
	case "ok":
		r.SLI.Answered(rating.Class, rating.Latency)
	case fault.Internal.String(), fault.Corrupt.String(), fault.Unavailable.String(), fault.Exhausted.String(),
		fault.Deadline.String(), fault.Full.String():
		r.SLI.Failed(rating.Class)
	}
}
