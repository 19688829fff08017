package roles

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/webhook"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/store"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
)

// newWebhooks makes the webhooks and pushes their closer. It returns nil if the configuration has no webhook.
func newWebhooks(d *deps, stored *store.Store) (*webhook.Hooks, error) {
	cfg, log := d.cfg, d.log
	if len(cfg.Webhook) == 0 || !cfg.Push.Enabled {
		return nil, nil
	}
	o := webhook.Options{Dir: filepath.Join(cfg.State, "outbox"), Agent: "packhorse/" + d.process.Version,
		Registerer: d.reg, Log: log}
	if stored != nil {
		o.Store = stored
	}
	for _, w := range cfg.Webhook {
		t := webhook.Target{
			Name: w.Name, URL: w.URL, Pre: slices.Contains(w.Events, config.EventPre),
			Post: slices.Contains(w.Events, config.EventPost), Timeout: w.Timeout.Duration, Open: w.OnFailure == config.FailOpen,
			AllowPrivate: w.AllowPrivate,
		}
		patterns, err := auth.ParsePatterns(w.Repositories)
		if err != nil {
			return nil, err
		}
		if len(patterns) > 0 {
			d.mentions = append(d.mentions, func(from, to git.RepoPath) []string {
				if auth.Names(patterns, from, to) {
					return []string{"webhook " + w.Name}
				}
				return nil
			})
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
		d.life.push("webhooks", hooks.Close)
	}
	return hooks, err
}

// settlePatience is the maximum wait at the start for pushes to the previous server.
const settlePatience = 10 * time.Second

// completePatience is the maximum wait at the start for the completion of atomic pushes. Locks are observed for some
// seconds.
const completePatience = 30 * time.Second

// completePushes completes atomic pushes that a crash interrupted, so that no request sees a part of them.
func completePushes(node *storage.Node, log *slog.Logger) {
	patience, cancel := context.WithTimeout(context.Background(), completePatience)
	defer cancel()
	if left := node.CompleteAtomicPushes(patience); len(left) > 0 {
		log.Warn("atomic pushes to the previous server may be incomplete; their completion continues", "pushes", left)
	}
}
