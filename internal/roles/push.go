package roles

import (
	"log/slog"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/receivepack"
	"github.com/packhorse-git/packhorse/internal/webhook"
)

// newPushes makes what takes pushes; nil if none are taken.
func newPushes(cfg config.Config, log *slog.Logger, reg prometheus.Registerer, runner *process.Runner, hooks *webhook.Hooks, version string) (*receivepack.Server, error) {
	if !cfg.Push.Enabled {
		return nil, nil
	}
	metrics := receivepack.NewMetrics()
	register(reg, metrics)
	o := receivepack.Options{
		Runner: runner, Agent: "packhorse/" + version, MaxSize: int64(cfg.Push.MaxSize), MaxMemory: int64(cfg.Push.MaxMemory), MaxCommands: cfg.Push.MaxCommands, Fsck: cfg.Push.Fsck,
		MaxOptions: cfg.Push.MaxOptions, SessionID: cfg.Fetch.SessionID, Hooks: cfg.Push.HooksDir, HookTime: cfg.Push.HookTimeLimit.Duration,
		HooksConfig: cfg.Push.HooksGitConfig, RepositoryHooks: cfg.Push.HookPolicy(),
		Scripts: filepath.Join(cfg.State, "hooks"), Journal: filepath.Join(cfg.State, "pushes"), Metrics: metrics, Log: log,
	}
	if hooks != nil && hooks.Decides() {
		o.Decider = hooks
	}
	if hooks != nil && hooks.Delivers() {
		o.Recorder = hooks
	}
	return receivepack.New(o)
}
