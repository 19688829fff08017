package roles

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/webhook"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
)

// newWebhooks makes the webhooks and pushes their closer. It returns nil if pushes are disabled.
func (n *nodeParts) newWebhooks(d *deps) (*webhook.Hooks, error) {
	cfg, log := d.cfg, d.log
	if !cfg.Push.Enabled {
		return nil, nil
	}
	o := webhook.Options{Agent: "packhorse/" + d.process.Version, Registerer: d.reg, Log: log, Events: n.events(),
		States: webhook.Directory(filepath.Join(cfg.State, "webhooks")), AllowPrivate: cfg.Push.PrivateWebhooks,
		Patterns: covers, Head: n.headBranch, Commits: n.githubCommits}
	if n.store != nil {
		o.States = webhook.InBucket{Bucket: n.store.Bucket()}
	}
	for _, w := range cfg.Webhook {
		t := webhook.Target{
			Name: w.Name, URL: w.URL, Pre: slices.Contains(w.Events, config.EventPre),
			Post: slices.Contains(w.Events, config.EventPost), Timeout: w.Timeout.Duration, Open: w.OnFailure == config.FailOpen,
			AllowPrivate: w.AllowPrivate, Repositories: w.Repositories,
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
	ctx, cancel := context.WithTimeout(context.Background(), settlePatience)
	defer cancel()
	hooks, err := webhook.New(ctx, o)
	if err == nil {
		d.life.push("webhooks", hooks.Close)
		d.mentions = append(d.mentions, func(from, to git.RepoPath) []string { return webhooksNaming(hooks, from, to) })
	}
	return hooks, err
}

// webhooksNaming lists the webhooks that name a repository by its path before it was renamed.
func webhooksNaming(hooks *webhook.Hooks, from, to git.RepoPath) (names []string) {
	ctx, cancel := context.WithTimeout(context.Background(), settlePatience)
	defer cancel()
	list, err := hooks.List(ctx)
	if err != nil {
		return []string{"perhaps webhooks added by calls, which cannot be read: " + fault.Message(err)}
	}
	for _, w := range list {
		patterns, err := auth.ParsePatterns(w.GetRepositories())
		if err == nil && auth.Names(patterns, from, to) {
			names = append(names, "webhook "+w.GetName())
		}
	}
	return names
}

// covers returns a function that reports whether a repository matches one of the patterns.
func covers(texts []string) (func(git.RepoPath) bool, error) {
	patterns, err := auth.ParsePatterns(texts)
	return func(repo git.RepoPath) bool {
		return slices.ContainsFunc(patterns, func(p auth.Pattern) bool { return p.Covers(repo) })
	}, err
}

// headBranch returns the default branch of a repository.
func (n *nodeParts) headBranch(ctx context.Context, path git.RepoPath) (string, error) {
	d, err := n.node.Describe(ctx, path)
	return strings.TrimPrefix(string(d.Head.Target), places.BranchPrefix), err
}

// githubCommits returns the commits of an update, the newest last.
func (n *nodeParts) githubCommits(ctx context.Context, path git.RepoPath, u receivepack.Update, limit int) (
	commits []webhook.Commit, err error) {
	q := lookup.LogRequest{Revisions: []string{u.New.String()}, Limit: limit}
	if u.Kind == receivepack.Created {
		q.Limit = 1
	} else {
		q.Exclude = []string{u.Old.String()}
	}
	person := func(s lookup.Signature) webhook.GitHubPerson {
		return webhook.GitHubPerson{Name: string(s.Name), Email: string(s.Email)}
	}
	err = n.node.Log(ctx, path, q, func(list []lookup.Commit) error {
		for _, c := range list {
			commits = append(commits, webhook.Commit{ID: c.ID.String(), Tree: c.Tree.String(), Message: string(c.Message),
				Timestamp: webhook.GitHubTime(c.Committer.Seconds, c.Committer.Offset), Author: person(c.Author),
				Committer: person(c.Committer)})
		}
		return nil
	})
	slices.Reverse(commits)
	return commits, err
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
