package places

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// Limits of the scan for hooks at the start: its duration, and the number of paths in the log.
const (
	hookScanTimeout = 30 * time.Second
	hookExamples    = 10
)

// logHooks logs which repositories have hooks that are not run, so that administrators who come from another server
// know before a push is refused or a hook is ignored.
func (d *Directories) logHooks(ctx context.Context, policy receivepack.RepositoryHooks) {
	ctx, cancel := context.WithTimeout(ctx, hookScanTimeout)
	defer cancel()
	var examples []string
	checked, hooked, complete := 0, 0, true
	w := repo.Walk{Options: d.Repo}
	for path, err := range w.All(ctx) {
		if err != nil {
			if complete = false; errors.Is(err, context.DeadlineExceeded) {
				break
			}
			return // the node closes, or Ready reports the error
		}
		checked++
		hooks, err := repo.PushHooks(filepath.Join(d.root, path), d.Repo)
		if err != nil || len(hooks) == 0 {
			continue // Describe reports the error
		}
		if hooked++; len(examples) < hookExamples {
			examples = append(examples, filepath.Join(path, hooks[0].Name))
		}
	}
	if hooked == 0 {
		d.Log.Debug("no repository has hooks", "repositories", checked, "complete", complete)
		return
	}
	level := slog.LevelWarn // pushes to them are refused
	if policy == receivepack.IgnoreHooks {
		level = slog.LevelInfo
	}
	d.Log.Log(ctx, level, "repositories have hooks that are not run", "push.repository_hooks", string(policy),
		"hooked", hooked, "repositories", checked, "complete", complete, "examples", examples)
}

// startHookScan runs logHooks in the background, if the log has its level.
func (d *Directories) startHookScan(policy receivepack.RepositoryHooks) {
	if policy != receivepack.RunHooks && d.Log.Enabled(d.ctx, slog.LevelInfo) {
		d.running.Go(func() { d.logHooks(d.ctx, policy) })
	}
}
