package mirror

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// metrics are the metrics of mirrors.
type metrics struct {
	updates *prometheus.CounterVec
	seconds prometheus.Histogram
	lfs     lfsMetrics
}

// newMetrics creates the metrics of mirrors. Their gauges are read from m.
func newMetrics(r prometheus.Registerer, m *Mirrors) *metrics {
	with := promauto.With(r)
	with.NewGaugeFunc(prometheus.GaugeOpts{Name: "packhorse_mirror_staleness_max_seconds",
		Help: "Age of the oldest mirror whose last check or update failed.",
	}, func() (most float64) {
		m.eachState(func(s *state) {
			if s.Error != "" {
				most = max(most, m.now().Sub(s.Fresh).Seconds())
			}
		})
		return most
	})
	for name, has := range map[string]func(s *state) bool{
		"current":    func(s *state) bool { return s.Complete && s.Error == "" },
		"failing":    func(s *state) bool { return s.Complete && s.Error != "" },
		"incomplete": func(s *state) bool { return !s.Complete },
	} {
		with.NewGaugeFunc(prometheus.GaugeOpts{Name: "packhorse_mirrors",
			Help: "Mirrors used since the start by state: current, failing (the last check or update failed), and " +
				"incomplete (the first update has not ended).",
			ConstLabels: prometheus.Labels{"state": name},
		}, func() (n float64) {
			m.eachState(func(s *state) {
				if has(s) {
					n++
				}
			})
			return n
		})
	}
	return &metrics{
		updates: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_mirror_updates_total",
			Help: "Updates of mirrors by result: changed, unchanged (the refs were the same), or the error.",
		}, []string{"result"}),
		seconds: with.NewHistogram(prometheus.HistogramOpts{
			Name: "packhorse_mirror_update_seconds", Help: "Duration of updates of mirrors.",
			Buckets: []float64{.01, .03, .1, .3, 1, 3, 10, 30, 100, 300, 1000},
		}),
		lfs: newLFSMetrics(with, m),
	}
}

// eachState calls do with the state of each mirror that was used since the start, whose lock is held.
func (m *Mirrors) eachState(do func(*state)) {
	for _, r := range m.all() {
		r.mu.Lock()
		do(&r.state)
		r.mu.Unlock()
	}
}

func (m *metrics) updated(i storage.Ingested, err error, took time.Duration) {
	label := result(err)
	if err == nil {
		if label = "unchanged"; isChange(i) {
			label = "changed"
		}
	}
	m.updates.WithLabelValues(label).Inc()
	m.seconds.Observe(took.Seconds())
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
