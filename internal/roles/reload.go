package roles

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/observe"
)

// reloader reads the configuration again at each SIGHUP. Nodes, routes, rules, the application's workers and pools, and the log's level change at once; of what needs a restart the log
// tells the keys. A configuration that the process would not start with changes nothing.
type reloader struct {
	source  *source
	running Config // what holds now
	level   *slog.LevelVar
	log     *slog.Logger
	take    func(Config) error // nodes, routes and rules; nil where there are none
}

// untilDone waits for ctx to end, and reloads meanwhile.
func (r *reloader) untilDone(ctx context.Context) {
	if r.source.env.Hangups == nil {
		<-ctx.Done()
		return
	}
	hangups, stop := r.source.env.Hangups()
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
	if r.source.file == "" {
		r.log.Info("there is no configuration file to read again")
		return
	}
	cfg, err := r.source.loadChecked()
	if err == nil && r.take != nil {
		err = r.take(cfg)
	}
	if err != nil {
		r.log.Error("the configuration stays as it was: it cannot be used as it is now", "file", r.source.file, "error", err)
		return
	}
	if err := setLevel(r.level, cfg.Log.Level); err == nil {
		r.running.Log.Level = cfg.Log.Level
	}
	var waiting []string
	if !r.running.App.reloaded(&cfg.App) && len(r.running.App.Pool) != len(cfg.App.Pool) {
		waiting = append(waiting, "app.pool")
	}
	r.running.Node, r.running.Route, r.running.Auth.Rule = cfg.Node, cfg.Route, cfg.Auth.Rule
	if waiting = append(waiting, changedKeys(&r.running, &cfg)...); len(waiting) > 0 {
		r.log.Warn("these changes of the configuration need a restart", "keys", strings.Join(waiting, " "))
	}
	r.log.Info("read the configuration again", "file", r.source.file, "nodes", len(cfg.Node), "routes", len(cfg.Route))
}

// changedKeys lists the keys whose values differ, without those of arrays of tables.
func changedKeys(a, b *Config) (list []string) {
	values := map[string]string{}
	for _, s := range settings(a) {
		values[s.Key] = s.String()
	}
	for _, s := range settings(b) {
		if plainKey(s.Key) == s.Key && values[s.Key] != s.String() {
			list = append(list, s.Key)
		}
	}
	slices.Sort(list)
	return list
}

func setLevel(v *slog.LevelVar, text string) error {
	level, err := observe.ParseLevel(text)
	if err == nil {
		v.Set(level)
	}
	return err
}
