package roles

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/credfile"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/storage"
	"github.com/packhorse-git/packhorse/internal/webhook"
)

// newWebhooks makes the webhooks and pushes their closer. It returns nil if there are none.
func (s *server) newWebhooks() (*webhook.Hooks, error) {
	cfg, log := s.cfg, s.log
	if len(cfg.Webhook) == 0 || !cfg.Push.Enabled {
		return nil, nil
	}
	o := webhook.Options{Dir: filepath.Join(cfg.State, "outbox"), Agent: "packhorse/" + s.process.Version,
		Metrics: webhook.NewMetrics(), Log: log}
	s.register(o.Metrics)
	for _, w := range cfg.Webhook {
		t := webhook.Target{
			Name: w.Name, URL: w.URL, Pre: slices.Contains(w.Events, config.EventPre),
			Post:    slices.Contains(w.Events, config.EventPost),
			Timeout: w.Timeout.Duration, Open: w.OnFailure == config.FailOpen, AllowPrivate: w.AllowPrivate,
			GiveUp: w.GiveUp.Duration,
		}
		patterns, err := auth.ParsePatterns(w.Repositories)
		if err != nil {
			return nil, err
		}
		if len(patterns) > 0 {
			t.Covers = func(repo git.RepoPath) bool {
				return slices.ContainsFunc(patterns, func(p auth.Pattern) bool { return p.Covers(repo) })
			}
		}
		if w.SecretFile != "" {
			secret, err := credfile.LoadSecret(w.SecretFile, log)
			if err != nil {
				return nil, err
			}
			t.Secret = secret.Get
		}
		o.Targets = append(o.Targets, t)
	}
	hooks, err := webhook.New(o)
	if err == nil {
		s.closers.push("webhooks", hooks.Close)
	}
	return hooks, err
}

// settlePatience is how long a start waits for pushes to the server before it.
const settlePatience = 10 * time.Second

// completePatience is how long a start waits for atomic pushes to be done to their ends. A lock has to be seen for some
// seconds.
const completePatience = 30 * time.Second

// completePushes sees to it that the first request finds no half of an atomic push that a crash cut off.
func completePushes(node *storage.Node, log *slog.Logger) {
	patience, cancel := context.WithTimeout(context.Background(), completePatience)
	defer cancel()
	if left := node.CompleteAtomicPushes(patience); len(left) > 0 {
		log.Warn("atomic pushes to the server before this one may be done by half; the server starts, and goes on with them",
			"pushes", left)
	}
}

// startWebhooks settles what a crash left, and delivers. Before the first push.
func startWebhooks(hooks *webhook.Hooks, node *storage.Node) error {
	var alive []string
	if hooks.Delivers() {
		patience, cancel := context.WithTimeout(context.Background(), settlePatience)
		defer cancel()
		alive = node.WaitForEarlierPushes(patience)
	}
	err := hooks.Recover(context.Background(), alive, node.RefValue)
	if err == nil {
		hooks.Start()
	}
	return err
}
