package mirror

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// newMetrics creates the metrics of mirrors. Their gauges are read from m.
func newMetrics(r prometheus.Registerer, m *Mirrors) lfsMetrics {
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
	return newLFSMetrics(with, m)
}

// eachState calls do with the state of each mirror that was used since the start, whose lock is held.
func (m *Mirrors) eachState(do func(*state)) {
	for _, r := range m.all() {
		r.mu.Lock()
		do(&r.state)
		r.mu.Unlock()
	}
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
