package control

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// metrics are the metrics of a node's port.
type metrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	links   inflight.Exemplars
}

func newMetrics(r prometheus.Registerer) *metrics {
	with := promauto.With(r)
	return &metrics{
		calls: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_control_calls_total", Help: "Calls of the control API by procedure and code.",
		}, []string{"procedure", "code"}),
		seconds: with.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "packhorse_control_call_seconds",
			Help:    "Duration of calls, from the first message to the end of the response.",
			Buckets: []float64{.0001, .0003, .001, .003, .01, .03, .1, .3, 1, 3, 10, 30, 100},
		}, []string{"procedure"}),
	}
}
