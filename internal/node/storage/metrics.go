package storage

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// Metrics are the metrics of a node, except those of fetches.
type Metrics struct {
	counted *prometheus.CounterVec
	lookups struct{ resolve, resolveMany, revisions, exists, list, get, repositories prometheus.Counter }

	resolving prometheus.Histogram

	watchers prometheus.Gauge
	watched  prometheus.Gauge
	events   *prometheus.CounterVec
	checked  prometheus.Counter
	round    prometheus.Histogram
	hanging  prometheus.Gauge

	changed  *prometheus.CounterVec
	maintain *prometheus.HistogramVec
	checks   *prometheus.CounterVec
	pending  prometheus.Gauge
	trash    prometheus.Gauge
	lfsDue   *prometheus.GaugeVec

	warmupWait prometheus.Histogram
}

// NewMetrics creates the metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		counted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_lookups_total",
			Help: "Look-ups of refs and repositories by kind. Each name of resolve_many and revisions counts.",
		}, []string{"kind"}),
		resolving: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "packhorse_revisions_seconds", Help: "Duration of resolving the revisions of one call in process.",
			Buckets: []float64{5e-6, 1e-5, 2e-5, 5e-5, .0001, .00025, .001, .005, .025, .1, 1, 10},
		}),
		watchers: prometheus.NewGauge(prometheus.GaugeOpts{Name: "packhorse_watchers", Help: "Open watches of refs."}),
		watched: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "packhorse_watched_repositories", Help: "Repositories that are checked regularly for watches.",
		}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_watch_events_total",
			Help: "Events for watches by kind: first (the first state), changes, reset, gone, and overflow (the watcher was " +
				"too slow).",
		}, []string{"kind"}),
		checked: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_watch_looks_total", Help: "Checks of watched repositories.",
		}),
		round: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "packhorse_watch_round_seconds",
			Help:    "Duration of checking every watched repository once. Above one second, events are late.",
			Buckets: []float64{.001, .003, .01, .03, .1, .3, 1, 3, 10},
		}),
		hanging: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "packhorse_watch_looks_hanging",
			Help: "Checks of watched repositories that take longer than a second. Rounds continue without them.",
		}),
		changed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_repositories_changed_total",
			Help: "Repositories created, imported, deleted, or whose HEAD was set, by result.",
		}, []string{"change", "result"}),
		maintain: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "packhorse_maintenance_seconds", Help: "Duration of the maintenance of a repository, by result.",
			Buckets: []float64{.1, .3, 1, 3, 10, 30, 100, 300, 1000, 3000},
		}, []string{"result"}),
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_maintenance_checks_total",
			Help: "Repositories checked after changes of their refs, by outcome: not_due, due (maintained), " +
				"paused (failed or declined recently), declined (by a pre-auto-gc hook), failed, dropped (too many waited).",
		}, []string{"outcome"}),
		pending: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "packhorse_maintenance_pending", Help: "Repositories that wait for a check after a change of their refs.",
		}),
		trash: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "packhorse_trash_pending", Help: "Deleted repositories whose files are not removed yet.",
		}),
		lfsDue: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "packhorse_lfs_care_due_timestamp_seconds",
			Help: "Time by which the next collection of LFS garbage (gc) and the next verification of all LFS objects " +
				"(scrub) have to end, since 1970. An earlier time than now means that they failed or are too slow. " +
				"Absent if the server does not do them.",
		}, []string{"task"}),
		warmupWait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "packhorse_warmup_push_wait_seconds",
			Help:    "Time that reports of pushes waited for packs of the warm-up, at most 50 ms. Other pushes are not counted.",
			Buckets: []float64{.001, .002, .005, .01, .02, .05, .1},
		}),
	}
	l := &m.lookups
	l.resolve, l.resolveMany = m.counted.WithLabelValues("resolve"), m.counted.WithLabelValues("resolve_many")
	l.revisions = m.counted.WithLabelValues("revisions")
	l.exists, l.list = m.counted.WithLabelValues("exists"), m.counted.WithLabelValues("list_refs")
	l.get, l.repositories = m.counted.WithLabelValues("get"), m.counted.WithLabelValues("list_repositories")
	return m
}

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.counted, m.resolving, m.watchers, m.watched, m.events, m.checked, m.round, m.hanging,
		m.changed, m.maintain, m.checks, m.pending, m.trash, m.lfsDue, m.warmupWait}
}

// result returns an error as a label.
func result(err error) string {
	if err == nil {
		return "ok"
	}
	return fault.KindOf(err).String()
}

// changedRepository counts and logs the creation, import or deletion of a repository, or a change of its HEAD. more has
// additional fields for the log.
func (n *Node) changedRepository(change string, path git.RepoPath, err error, more ...any) {
	log := n.log.With(more...)
	n.metrics.changed.WithLabelValues(change, result(err)).Inc()
	if err == nil {
		log.Info("changed a repository", "change", change, "repository", path.String())
		return
	}
	level := slog.LevelInfo // an error of the caller
	switch fault.KindOf(err) {
	case fault.Internal, fault.Corrupt, fault.Unavailable:
		level = slog.LevelError
	case fault.Exhausted, fault.Deadline, fault.Cancelled:
		level = slog.LevelWarn
	}
	log.Log(context.Background(), level, "cannot change a repository", "change", change, "repository", path.String(),
		"result", result(err), "error", err)
}
