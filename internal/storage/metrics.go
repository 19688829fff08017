package storage

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// Metrics counts what a node does beside fetches.
type Metrics struct {
	asked   *prometheus.CounterVec
	lookups struct{ resolve, resolveMany, revisions, exists, list, get, repositories prometheus.Counter }

	resolving prometheus.Histogram

	watchers prometheus.Gauge
	watched  prometheus.Gauge
	events   *prometheus.CounterVec
	looks    prometheus.Counter
	round    prometheus.Histogram
	hanging  prometheus.Gauge

	changed  *prometheus.CounterVec
	maintain *prometheus.HistogramVec
	checks   *prometheus.CounterVec
	pending  prometheus.Gauge
	trash    prometheus.Gauge
}

// NewMetrics makes counters that start at zero.
func NewMetrics() *Metrics {
	m := &Metrics{
		asked: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_lookups_total", Help: "Look-ups of refs and repositories by kind; of resolve_many and revisions each name counts.",
		}, []string{"kind"}),
		resolving: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "packhorse_revisions_seconds", Help: "Time to find in process what the revisions of one call name.",
			Buckets: []float64{5e-6, 1e-5, 2e-5, 5e-5, .0001, .00025, .001, .005, .025, .1, 1, 10},
		}),
		watchers: prometheus.NewGauge(prometheus.GaugeOpts{Name: "packhorse_watchers", Help: "Watches of refs that are open now."}),
		watched: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "packhorse_watched_repositories", Help: "Repositories that are looked at regularly for watches.",
		}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_watch_events_total", Help: "Events given to watches: first states, changes, resets, and repositories that are gone.",
		}, []string{"kind"}),
		looks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_watch_looks_total", Help: "Looks at watched repositories.",
		}),
		round: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "packhorse_watch_round_seconds", Help: "Time to look at every watched repository once; over a second, events come late.",
			Buckets: []float64{.001, .003, .01, .03, .1, .3, 1, 3, 10},
		}),
		hanging: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "packhorse_watch_looks_hanging", Help: "Looks at watched repositories that take longer than a second; rounds go on without them.",
		}),
		changed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_repositories_changed_total", Help: "Repositories created, imported and deleted, and their HEAD set, by result.",
		}, []string{"change", "result"}),
		maintain: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "packhorse_maintenance_seconds", Help: "Time to maintain a repository, by result.",
			Buckets: []float64{.1, .3, 1, 3, 10, 30, 100, 300, 1000, 3000},
		}, []string{"result"}),
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_maintenance_checks_total",
			Help: "Repositories looked at after changes of their refs, by outcome: not_due, due (maintained), paused (it failed or was declined lately), declined (by a pre-auto-gc hook), failed, dropped (too many waited).",
		}, []string{"outcome"}),
		pending: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "packhorse_maintenance_pending", Help: "Repositories whose refs changed, and that are to be looked at.",
		}),
		trash: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "packhorse_trash_pending", Help: "Deleted repositories whose files are still being removed.",
		}),
	}
	l := &m.lookups
	l.resolve, l.resolveMany = m.asked.WithLabelValues("resolve"), m.asked.WithLabelValues("resolve_many")
	l.revisions = m.asked.WithLabelValues("revisions")
	l.exists, l.list = m.asked.WithLabelValues("exists"), m.asked.WithLabelValues("list_refs")
	l.get, l.repositories = m.asked.WithLabelValues("get"), m.asked.WithLabelValues("list_repositories")
	return m
}

// Collectors is what there is to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.asked, m.resolving, m.watchers, m.watched, m.events, m.looks, m.round, m.hanging, m.changed, m.maintain, m.checks, m.pending, m.trash}
}

// result is an error as a label.
func result(err error) string {
	if err == nil {
		return "ok"
	}
	return fault.KindOf(err).String()
}

// changedRepository counts and logs that a repository was created, imported or deleted, or its HEAD set, or that it was not. More are
// fields of the log.
func (n *Node) changedRepository(change string, path git.RepoPath, err error, more ...any) {
	log := n.log.With(more...)
	n.metrics.changed.WithLabelValues(change, result(err)).Inc()
	if err == nil {
		log.Info("changed a repository", "change", change, "repository", path.String())
		return
	}
	level := slog.LevelInfo // the caller's mistake
	switch fault.KindOf(err) {
	case fault.Internal, fault.Corrupt, fault.Unavailable:
		level = slog.LevelError
	case fault.Exhausted, fault.Deadline, fault.Cancelled:
		level = slog.LevelWarn
	}
	log.Log(context.Background(), level, "cannot change a repository", "change", change, "repository", path.String(), "result", result(err), "error", err)
}
