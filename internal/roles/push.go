package roles

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/receivepack"
)

// newPushes makes what takes pushes; nil if none are taken.
func newPushes(cfg Config, log *slog.Logger, reg prometheus.Registerer, runner *process.Runner, version string) *receivepack.Server {
	if !cfg.Push.Enabled {
		return nil
	}
	metrics := receivepack.NewMetrics()
	register(reg, metrics)
	return receivepack.New(receivepack.Options{
		Runner: runner, Agent: "packhorse/" + version, MaxSize: int64(cfg.Push.MaxSize), MaxCommands: cfg.Push.MaxCommands,
		MaxOptions: cfg.Push.MaxOptions, SessionID: cfg.Fetch.SessionID, Metrics: metrics, Log: log,
	})
}
