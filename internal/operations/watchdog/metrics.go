package watchdog

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are the metrics of a Watchdog.
type Metrics struct {
	dumps  *prometheus.CounterVec
	stuck  *prometheus.GaugeVec
	late   prometheus.Gauge
	probes *probeCollector
}

// NewMetrics creates the metrics. A nil Registerer is valid.
func NewMetrics(r prometheus.Registerer) *Metrics {
	f := promauto.With(r)
	m := &Metrics{
		dumps: f.NewCounterVec(prometheus.CounterOpts{Name: "packhorse_watchdog_dumps_total",
			Help: "Dumps that were written, by cause: a sign that the process makes too little progress (scheduler, probe), " +
				"asked (packhorse debug dump) or signal (SIGQUIT)."}, []string{"cause"}),
		stuck: f.NewGaugeVec(prometheus.GaugeOpts{Name: "packhorse_watchdog_stuck",
			Help: "1 while a sign lasts that the process makes too little progress, by sign."}, []string{"sign"}),
		late: f.NewGauge(prometheus.GaugeOpts{Name: "packhorse_watchdog_late_seconds",
			Help: "How late the scheduler last woke the watchdog."}),
		probes: &probeCollector{desc: prometheus.NewDesc("packhorse_watchdog_probe_waiting_seconds",
			"For how long a probe has had no answer; 0: it has had one.", []string{"probe"}, nil)},
	}
	if r != nil {
		r.MustRegister(m.probes)
	}
	for _, sign := range []string{signScheduler, signProbe} {
		m.dumps.WithLabelValues(sign)
		m.stuck.WithLabelValues(sign)
	}
	m.dumps.WithLabelValues(CauseAsked)
	m.dumps.WithLabelValues(CauseSignal)
	return m
}

func (m *Metrics) probe(p *probe) {
	m.probes.mu.Lock()
	defer m.probes.mu.Unlock()
	m.probes.all = append(m.probes.all, p)
}

func (m *Metrics) looked(r reading, found []finding) {
	m.late.Set(max(r.late, 0).Seconds())
	present := map[string]float64{signScheduler: 0, signProbe: 0}
	for _, f := range found {
		present[f.sign] = 1
	}
	for sign, value := range present {
		m.stuck.WithLabelValues(sign).Set(value)
	}
}

// probeCollector reports the age of unanswered probes when it is collected.
type probeCollector struct {
	desc *prometheus.Desc
	mu   sync.Mutex
	all  []*probe
}

func (c *probeCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

func (c *probeCollector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for _, p := range c.all {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, p.waiting(now).Seconds(), p.Name)
	}
}
