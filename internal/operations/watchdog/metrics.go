package watchdog

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of a Watchdog.
type Metrics struct {
	dumps   *prometheus.CounterVec
	failed  prometheus.Counter
	skipped prometheus.Counter
	bytes   prometheus.Gauge
	stuck   *prometheus.GaugeVec
	late    prometheus.Gauge
	tracing prometheus.Gauge
	locks   prometheus.Gauge
	calls   prometheus.Gauge
	probes  *probeCollector
}

// NewMetrics returns metrics that are not yet registered.
func NewMetrics() *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &Metrics{
		dumps: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "packhorse_watchdog_dumps_total",
			Help: "Dumps that were written, by cause: a sign that the process makes too little progress (scheduler, spawn, " +
				"mutex, syscall, probe), asked (packhorse debug dump) or signal (SIGQUIT)."}, []string{"cause"}),
		failed: counter("packhorse_watchdog_failed_dumps_total", "Dumps that no directory took."),
		skipped: counter("packhorse_watchdog_skipped_dumps_total",
			"Dumps that were due and not written, because there had been one a short time ago."),
		bytes: gauge("packhorse_watchdog_dump_bytes", "Size of the dumps that are kept, when one was last written."),
		stuck: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "packhorse_watchdog_stuck",
			Help: "1 while a sign lasts that the process makes too little progress, by sign."}, []string{"sign"}),
		tracing: gauge("packhorse_watchdog_tracing",
			"1 while the last seconds of the execution trace are kept; 0 while that would cost too much, or is turned off."),
		late: gauge("packhorse_watchdog_late_seconds", "How late the scheduler last woke the watchdog."),
		locks: gauge("packhorse_watchdog_lock_waiters",
			"Goroutines that wait for locks, as the watchdog last saw; 0 while there are few goroutines."),
		calls: gauge("packhorse_watchdog_syscalls", "Goroutines that are in system calls, as the watchdog last saw."),
		probes: &probeCollector{desc: prometheus.NewDesc("packhorse_watchdog_probe_waiting_seconds",
			"For how long a probe has had no answer; 0: it has had one.", []string{"probe"}, nil)},
	}
	for _, sign := range allSigns {
		m.dumps.WithLabelValues(sign)
		m.stuck.WithLabelValues(sign)
	}
	m.dumps.WithLabelValues(CauseAsked)
	m.dumps.WithLabelValues(CauseSignal)
	return m
}

// Collectors returns the collectors to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.dumps, m.failed, m.skipped, m.bytes, m.stuck, m.late, m.tracing, m.locks, m.calls,
		m.probes}
}

func (m *Metrics) probe(p *probe) {
	m.probes.mu.Lock()
	defer m.probes.mu.Unlock()
	m.probes.all = append(m.probes.all, p)
}

func (m *Metrics) wrote(cause string, err error) {
	if err != nil {
		m.failed.Inc()
		return
	}
	m.dumps.WithLabelValues(cause).Inc()
}

func (m *Metrics) traces(on bool) {
	value := 0.0
	if on {
		value = 1
	}
	m.tracing.Set(value)
}

func (m *Metrics) looked(r reading, found []finding) {
	m.late.Set(max(r.late, 0).Seconds())
	m.locks.Set(float64(r.locks))
	m.calls.Set(float64(r.syscalls))
	for _, sign := range allSigns {
		value := 0.0
		for _, f := range found {
			if f.sign == sign {
				value = 1
			}
		}
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
