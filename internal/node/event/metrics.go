package event

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct{ written *prometheus.CounterVec }

func newMetrics(r prometheus.Registerer) *metrics {
	return &metrics{promauto.With(r).NewCounterVec(prometheus.CounterOpts{
		Name: "packhorse_events_total", Help: "Events that this node has recorded, by kind.",
	}, []string{"kind"})}
}
