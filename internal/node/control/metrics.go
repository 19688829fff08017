package control

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// Metrics are the metrics of a node's port.
type Metrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	refused *prometheus.CounterVec
	panics  prometheus.Counter
	links   inflight.Exemplars

	slots    atomic.Pointer[balance.Slots] // of heavy look-ups
	slotWait prometheus.Histogram
	ofSlots  []prometheus.Collector
}

// NewMetrics creates the metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_control_calls_total", Help: "Calls of the control API by procedure and code.",
		}, []string{"procedure", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "packhorse_control_call_seconds",
			Help:    "Duration of calls, from the first message to the end of the response.",
			Buckets: []float64{.0001, .0003, .001, .003, .01, .03, .1, .3, 1, 3, 10, 30, 100},
		}, []string{"procedure"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_control_refused_total", Help: "Refused callers by reason.",
		}, []string{"reason"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_control_panics_total", Help: "Calls that ended in a panic. The log has the stack.",
		}),
	}
	m.slotWait = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "packhorse_control_lookup_wait_seconds",
		Help:    "Time that heavy look-ups waited for a slot, including those that gave up.",
		Buckets: []float64{.001, .005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30},
	})
	m.ofSlots = []prometheus.Collector{
		m.slotWait,
		m.gauge("packhorse_control_lookups_queued", "Heavy look-ups that wait for a slot.", (*balance.Slots).Queued),
		m.gauge("packhorse_control_lookups_running", "Heavy look-ups that have a slot.", (*balance.Slots).InUse),
		m.gauge("packhorse_control_lookup_slots", "Slots for heavy look-ups.", (*balance.Slots).Size),
	}
	return m
}

// gauge returns a gauge of the slots, which is zero before they exist.
func (m *Metrics) gauge(name, help string, of func(*balance.Slots) int) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
		slots := m.slots.Load()
		if slots == nil {
			return 0
		}
		return float64(of(slots))
	})
}

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return append([]prometheus.Collector{m.calls, m.seconds, m.refused, m.panics}, m.ofSlots...)
}
