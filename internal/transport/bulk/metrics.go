package bulk

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are those of a Pump: bytes of answers by path.
type metrics struct{ kernel, user prometheus.Counter }

func newMetrics(r prometheus.Registerer) *metrics {
	copies := promauto.With(r).NewCounterVec(prometheus.CounterOpts{
		Name: "packhorse_copy_bytes_total",
		Help: "Bytes of answers by path: copied by the kernel, or through user space.",
	}, []string{"path"})
	return &metrics{kernel: copies.WithLabelValues("kernel"), user: copies.WithLabelValues("user")}
}

// Count adds the bytes of an ended answer to the metrics.
func (p *Pump) Count(t *Tally) {
	p.metrics.kernel.Add(float64(t.Kernel))
	p.metrics.user.Add(float64(t.Sent - t.Kernel))
}
