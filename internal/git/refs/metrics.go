package refs

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts for all stores that share it.
type Metrics struct {
	reused prometheus.Counter
	loaded prometheus.Counter
	broken prometheus.Counter
}

// NewMetrics creates the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	with := promauto.With(r)
	loads := with.NewCounterVec(prometheus.CounterOpts{
		Name: "packhorse_ref_snapshot_loads_total",
		Help: "Requested ref snapshots: the present one (reused) or a new one (loaded).",
	}, []string{"result"})
	return &Metrics{
		reused: loads.WithLabelValues("reused"), loaded: loads.WithLabelValues("loaded"),
		broken: with.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_ref_broken_total",
			Help: "Loose refs that were left out because they are broken: empty, junk, invalid links, " +
				"dangling or looping symbolic refs.",
		}),
	}
}
