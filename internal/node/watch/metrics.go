package watch

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	watched prometheus.Gauge
	checked prometheus.Counter
	round   prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) *metrics {
	with := promauto.With(r)
	return &metrics{
		watched: with.NewGauge(prometheus.GaugeOpts{
			Name: "packhorse_watched_repositories", Help: "Repositories that are checked regularly for watches.",
		}),
		checked: with.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_watch_checks_total", Help: "Checks of watched repositories.",
		}),
		round: with.NewHistogram(prometheus.HistogramOpts{
			Name:    "packhorse_watch_round_seconds",
			Help:    "Duration of checking every watched repository once. Above one second, events are late.",
			Buckets: []float64{.001, .003, .01, .03, .1, .3, 1, 3, 10},
		}),
	}
}
