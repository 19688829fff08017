package roles

import (
	"context"
	"log/slog"
	"os"
	"strings"

	"github.com/packhorse-git/packhorse/internal/operations/observe"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

// reloader reads the configuration again at each SIGHUP. Nodes, routes, rules, workers and pools of the application,
// and the log level change at once. The log names the changed keys that need a restart. An invalid configuration
// changes nothing.
type reloader struct {
	source  *config.Source
	hangups func() (signals <-chan os.Signal, stop func()) // as Process.Hangups
	running config.Config                                  // in force
	level   *slog.LevelVar
	log     *slog.Logger
	apply   func(config.Config) error
}

// untilDone reloads the configuration until ctx ends.
func (r *reloader) untilDone(ctx context.Context) {
	if r.hangups == nil {
		<-ctx.Done()
		return
	}
	hangups, stop := r.hangups()
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			r.reload()
		}
	}
}

func (r *reloader) reload() {
	if r.source.File == "" {
		r.log.Info("there is no configuration file to read again")
		return
	}
	cfg, err := r.source.LoadChecked()
	if err == nil {
		err = r.apply(cfg)
	}
	if err != nil {
		r.log.Error("cannot reload the configuration: the previous one stays in force", "file", r.source.File, "error", err)
		return
	}
	if err := setLevel(r.level, cfg.Log.Level); err == nil {
		r.running.Log.Level = cfg.Log.Level
	}
	var waiting []string
	if !r.running.App.Reloaded(&cfg.App) && len(r.running.App.Pool) != len(cfg.App.Pool) {
		waiting = append(waiting, "app.pool")
	}
	r.running.Node, r.running.Route, r.running.Auth.Rule = cfg.Node, cfg.Route, cfg.Auth.Rule
	if waiting = append(waiting, config.ChangedKeys(&r.running, &cfg)...); len(waiting) > 0 {
		r.log.Warn("these changes of the configuration need a restart", "keys", strings.Join(waiting, " "))
	}
	r.log.Info("read the configuration again", "file", r.source.File, "nodes", len(cfg.Node), "routes", len(cfg.Route))
}

func setLevel(v *slog.LevelVar, text string) error {
	level, err := observe.ParseLevel(text)
	if err == nil {
		v.Set(level)
	}
	return err
}
