package mirror

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// Metrics are the metrics of mirrors.
type Metrics struct {
	checks  *prometheus.CounterVec
	updates *prometheus.CounterVec
	seconds prometheus.Histogram
	bytes   prometheus.Counter
	refs    *prometheus.CounterVec
	lfs     lfsMetrics
	gauges  []prometheus.Collector
	mirrors atomic.Pointer[Mirrors]
}

// NewMetrics creates the metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_mirror_checks_total", Help: "Requests for the refs of an origin by result: ok, or the error.",
		}, []string{"result"}),
		updates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_mirror_updates_total",
			Help: "Updates of mirrors by result: changed, unchanged (the refs were the same), or the error.",
		}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "packhorse_mirror_update_seconds", Help: "Duration of updates of mirrors.",
			Buckets: []float64{.01, .03, .1, .3, 1, 3, 10, 30, 100, 300, 1000},
		}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_mirror_bytes_total", Help: "Bytes of packs that updates of mirrors received.",
		}),
		refs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_mirror_refs_total",
			Help: "Refs of mirrors by what updates did: created, changed, deleted, or skipped because they are invalid.",
		}, []string{"change"}),
		lfs: newLFSMetrics(),
	}
	m.gauge("packhorse_mirror_staleness_max_seconds", "Age of the oldest mirror whose last check or update failed.", nil,
		func(r *mirror, age float64) func(float64) float64 {
			if r.state.Error == "" {
				return nil
			}
			return func(most float64) float64 { return max(most, age) }
		})
	for name, has := range map[string]func(s *state) bool{
		"current":    func(s *state) bool { return s.Complete && s.Error == "" },
		"failing":    func(s *state) bool { return s.Complete && s.Error != "" },
		"incomplete": func(s *state) bool { return !s.Complete },
	} {
		m.gauge("packhorse_mirrors", "Mirrors used since the start by state: current, failing (the last check or update "+
			"failed), and incomplete (the first update has not ended).", prometheus.Labels{"state": name},
			func(r *mirror, _ float64) func(float64) float64 {
				if !has(&r.state) {
					return nil
				}
				return func(n float64) float64 { return n + 1 }
			})
	}
	return m
}

// gauge adds a gauge that is computed from all mirrors. add gets a mirror, whose lock is held, with its age in seconds;
// it returns how the mirror changes the value, or nil.
func (m *Metrics) gauge(name, help string, labels prometheus.Labels, add func(*mirror, float64) func(float64) float64) {
	m.gauges = append(m.gauges, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels},
		func() (value float64) {
			mirrors := m.mirrors.Load()
			if mirrors == nil {
				return 0
			}
			for _, r := range mirrors.all() {
				r.mu.Lock()
				if change := add(r, mirrors.now().Sub(r.state.Fresh).Seconds()); change != nil {
					value = change(value)
				}
				r.mu.Unlock()
			}
			return value
		}))
}

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return slices.Concat(m.gauges, m.lfs.collectors(), []prometheus.Collector{m.checks, m.updates, m.seconds, m.bytes,
		m.refs})
}

// watch counts the mirrors of m.
func (m *Metrics) watch(mirrors *Mirrors) {
	m.mirrors.Store(mirrors)
	if mirrors.lfs != nil {
		m.lfs.budget.Store(mirrors.lfs.budget)
	}
}

func (m *Metrics) checked(err error) { m.checks.WithLabelValues(result(err)).Inc() }

func (m *Metrics) updated(i storage.Ingested, err error, took time.Duration) {
	label := result(err)
	if err == nil {
		if label = "unchanged"; isChange(i) {
			label = "changed"
		}
		m.refs.WithLabelValues("created").Add(float64(i.Created))
		m.refs.WithLabelValues("changed").Add(float64(i.Changed))
		m.refs.WithLabelValues("deleted").Add(float64(i.Deleted))
		m.refs.WithLabelValues("skipped").Add(float64(len(i.Skipped)))
	}
	m.updates.WithLabelValues(label).Inc()
	m.seconds.Observe(took.Seconds())
	m.bytes.Add(float64(i.Bytes))
}

func result(err error) string {
	if err == nil {
		return "ok"
	}
	return fault.KindOf(err).String()
}

// all returns the mirrors that were used since the start.
func (m *Mirrors) all() []*mirror {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]*mirror, 0, len(m.known))
	for _, r := range m.known {
		list = append(list, r)
	}
	return list
}
