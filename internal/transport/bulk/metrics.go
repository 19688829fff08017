package bulk

import "github.com/prometheus/client_golang/prometheus"

// pipeSize is one of the sizes of a relay's pipe.
type pipeSize int

const (
	small pipeSize = iota
	large
	pipeSizes
)

// metrics are those of a Pump.
type metrics struct {
	copies       *prometheus.CounterVec
	kernel, user prometheus.Counter
	paused       prometheus.Counter
	pipes        [pipeSizes]prometheus.Collector
}

func newMetrics(p *pipes) metrics {
	m := metrics{copies: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "packhorse_copy_bytes_total",
		Help: "Bytes of answers by path: copied by the kernel, or through user space.",
	}, []string{"path"})}
	m.paused = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "packhorse_copy_paused_seconds_total",
		Help: "Time for which copies of bulk bytes waited because a small request was being answered.",
	})
	m.kernel, m.user = m.copies.WithLabelValues("kernel"), m.copies.WithLabelValues("user")
	for size, name := range map[pipeSize]string{small: "small", large: "large"} {
		m.pipes[size] = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "packhorse_relay_pipes", ConstLabels: prometheus.Labels{"size": name},
			Help: "Pipes between connections of nodes and clients by size: small (64 KiB), " +
				"large (up to 1 MiB, for fast clients).",
		}, func() float64 { return float64(p.count(size)) })
	}
	return m
}

// Collectors lists the metrics for registration.
func (p *Pump) Collectors() []prometheus.Collector {
	return append([]prometheus.Collector{p.metrics.copies, p.metrics.paused}, p.metrics.pipes[:]...)
}

// Count adds the bytes of an ended answer to the metrics.
func (p *Pump) Count(t *Tally) {
	p.metrics.kernel.Add(float64(t.Kernel))
	p.metrics.user.Add(float64(t.Sent - t.Kernel))
}
