package origin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Metrics are the metrics of origins. The label origin is the host of a configured mirror.
type Metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	waits    *prometheus.HistogramVec
	open     *prometheus.GaugeVec
	hosts    *prometheus.CounterVec
}

// NewMetrics creates the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	with := promauto.With(r)
	return &Metrics{
		requests: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_origin_requests_total",
			Help: "Requests to origins of mirrors by operation (probe, refs, fetch, advertisement, relay, and those of " +
				"Git LFS: lfs_api, lfs_download, lfs_upload) and result. " +
				"Results are ok, down (an outage), refused (not sent: an outage or the budget), or the kind of the error.",
		}, []string{"origin", "operation", "result"}),
		seconds: with.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "packhorse_origin_seconds",
			Help:    "Time until the header of an answer of an origin, for refs until the end of the answer.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"origin", "operation"}),
		waits: with.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "packhorse_origin_wait_seconds",
			Help:    "Time that requests to an origin waited for a slot or for the budget.",
			Buckets: []float64{.001, .01, .1, 1, 10},
		}, []string{"origin"}),
		open: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "packhorse_origin_breaker_open",
			Help: "Whether requests to the origin are stopped because it failed repeatedly: 1, or 0.",
		}, []string{"origin"}),
		hosts: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_origin_refused_hosts_total",
			Help: "LFS objects that the origin named at a host that is not in lfs_hosts of its mirror.",
		}, []string{"origin"}),
	}
}

// Operations in labels.
const (
	opProbe         = "probe"
	opRefs          = "refs"
	opFetch         = "fetch"
	opAdvertisement = "advertisement"
	opRelay         = "relay"

	// Of Request.
	OperationAPI      = "lfs_api"
	OperationDownload = "lfs_download"
	OperationUpload   = "lfs_upload"
)

// count counts the result of an operation that began at a time.
func (o *Origin) count(operation string, began time.Time, err error) {
	result := "ok"
	switch {
	case isRefusal(err):
		result = "refused"
	case IsDown(err):
		result = "down"
	case err != nil:
		result = fault.KindOf(err).String()
	}
	o.metrics.requests.WithLabelValues(o.Host(), operation, result).Inc()
	if result != "refused" {
		o.metrics.seconds.WithLabelValues(o.Host(), operation).Observe(time.Since(began).Seconds())
	}
}
