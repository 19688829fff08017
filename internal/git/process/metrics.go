package process

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// metrics counts the commands of one Runner.
type metrics struct {
	commands *prometheus.CounterVec
	inFlight *prometheus.GaugeVec
	wall     *prometheus.HistogramVec
	cpu      *prometheus.CounterVec
	maxRSS   *prometheus.GaugeVec
	slow     *prometheus.CounterVec
	starts   prometheus.Histogram
	short    *prometheus.CounterVec
	reaper   *reaperMetrics

	mu   sync.Mutex
	peak map[[2]string]int64 // by class and subcommand
}

func newMetrics(r prometheus.Registerer) *metrics {
	with := promauto.With(r)
	labels := func(more ...string) []string { return append([]string{"class", "subcommand"}, more...) }
	m := &metrics{
		commands: with.NewCounterVec(prometheus.CounterOpts{Name: "packhorse_git_commands_total",
			Help: "Git commands by result: ok, failed, memory (its limit was reached), signal (of another " +
				"process), or the kind of error that kept it from starting or ended it."}, labels("result")),
		inFlight: with.NewGaugeVec(prometheus.GaugeOpts{Name: "packhorse_git_commands_in_flight",
			Help: "Running git processes."}, labels()),
		wall: with.NewHistogramVec(prometheus.HistogramOpts{Name: "packhorse_git_seconds",
			Help:    "Run time of git processes, without time in a queue.",
			Buckets: []float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}}, labels()),
		cpu: with.NewCounterVec(prometheus.CounterOpts{Name: "packhorse_git_cpu_seconds_total",
			Help: "CPU time of ended git processes."}, labels("mode")),
		maxRSS: with.NewGaugeVec(prometheus.GaugeOpts{Name: "packhorse_git_max_rss_bytes",
			Help: "Peak resident size of a git process since the start of the server."}, labels()),
		slow: with.NewCounterVec(prometheus.CounterOpts{Name: "packhorse_git_slow_total",
			Help: "Git commands that took longer than 30 seconds (repacks: 10 minutes), including running ones."}, labels()),
		starts: with.NewHistogram(prometheus.HistogramOpts{Name: "packhorse_git_start_seconds",
			Help:    "Time to start a git process that has a slot, including pauses during a shortage.",
			Buckets: []float64{.0005, .001, .002, .005, .01, .025, .05, .1, .25, 1, 5}}),
		short: with.NewCounterVec(prometheus.CounterOpts{Name: "packhorse_git_start_shortages_total",
			Help: "Attempts to start a git process that failed because the system was short of a resource."},
			[]string{"of"}),
		reaper: newReaperMetrics(with),
		peak:   make(map[[2]string]int64),
	}
	return m
}

func (m *metrics) refused(c *Command, err error) {
	m.commands.WithLabelValues(string(c.Class), c.Subcommand, fault.KindOf(err).String()).Inc()
}

func (m *metrics) shortage(of string) { m.short.WithLabelValues(of).Inc() }

func (m *metrics) started(c *Command, took time.Duration) {
	m.starts.Observe(took.Seconds())
	m.inFlight.WithLabelValues(string(c.Class), c.Subcommand).Inc()
}

func (m *metrics) slowOne(c *Command) { m.slow.WithLabelValues(string(c.Class), c.Subcommand).Inc() }

func (m *metrics) finished(p *Process) {
	class, subcommand, u := string(p.command.Class), p.command.Subcommand, &p.usage
	m.inFlight.WithLabelValues(class, subcommand).Dec()
	m.wall.WithLabelValues(class, subcommand).Observe(u.Wall.Seconds())
	m.cpu.WithLabelValues(class, subcommand, "user").Add(u.User.Seconds())
	m.cpu.WithLabelValues(class, subcommand, "system").Add(u.System.Seconds())
	m.commands.WithLabelValues(class, subcommand, p.result()).Inc()
	m.mu.Lock()
	defer m.mu.Unlock()
	if key := [2]string{class, subcommand}; u.MaxRSS > m.peak[key] {
		m.peak[key] = u.MaxRSS
		m.maxRSS.WithLabelValues(class, subcommand).Set(float64(u.MaxRSS))
	}
}
