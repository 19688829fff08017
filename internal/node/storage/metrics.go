package storage

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// metrics are the metrics of a node, except those of fetches.
type metrics struct {
	checks *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	with := promauto.With(r)
	return &metrics{
		checks: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_maintenance_checks_total",
			Help: "Repositories checked after changes of their refs, by outcome: not_due, due (maintained), " +
				"paused (failed or declined recently), declined (by a pre-auto-gc hook), failed, dropped (too many waited).",
		}, []string{"outcome"}),
	}
}

// result returns an error as a label.
func result(err error) string {
	if err == nil {
		return "ok"
	}
	return fault.KindOf(err).String()
}

// changedRepository logs the creation, import or deletion of a repository, or a change of its HEAD. more has
// additional fields for the log.
func (n *Node) changedRepository(change string, path git.RepoPath, err error, more ...any) {
	log := n.log.With(more...)
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
