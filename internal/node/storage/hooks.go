package storage

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// HookedRepository is a repository with its own hooks that Git would run on a push.
type HookedRepository struct {
	Path  string // of its Git directory, below the root
	Hooks []repo.Hook
	Err   error // why its hooks cannot be read; Hooks is empty then
}

// FindHooks calls found for each repository below a root that has its own hooks (repo.Hooks) or whose hooks cannot
// be read. It includes submodules of repositories with a working tree. Linked worktrees have the hooks of their main
// repository. Symbolic links are followed to repositories, but not to directories with repositories. Hidden and
// unreadable directories are skipped. It reads every directory outside of repositories. checked is the number of
// repositories. The error is that of ctx, or of a root that cannot be read.
func FindHooks(ctx context.Context, root string, hidden []string, found func(HookedRepository)) (checked int,
	err error) {
	root, err = realPath(root)
	if err != nil {
		return 0, err
	}
	s := &hookScan{ctx: ctx, options: repo.Options{Root: root}, found: found}
	for _, dir := range hidden {
		if dir, err := realPath(dir); err == nil && dir != root {
			s.options.Hidden = append(s.options.Hidden, dir)
		}
	}
	if _, err := os.ReadDir(root); err != nil {
		return 0, err
	}
	err = s.walk(root)
	return s.checked, err
}

type hookScan struct {
	ctx     context.Context
	options repo.Options
	found   func(HookedRepository)
	checked int
}

func (s *hookScan) walk(dir string) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	if !s.options.Allows(dir) {
		return nil
	}
	if repo.IsGitDir(dir) {
		s.checkRepository(dir)
		dir = filepath.Join(dir, "modules") // of submodules
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir() && e.Name() != privateDir:
			err = s.walk(path)
		case e.Type()&fs.ModeSymlink != 0:
			for _, path := range []string{path, filepath.Join(path, ".git")} {
				if repo.IsGitDir(path) {
					s.checkRepository(path)
				}
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *hookScan) checkRepository(dir string) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil || !s.options.Allows(real) {
		return
	}
	s.checked++
	below, err := filepath.Rel(s.options.Root, dir)
	if err != nil {
		return
	}
	if hooks, err := repo.PushHooks(real, s.options); err != nil || len(hooks) > 0 {
		s.found(HookedRepository{Path: below, Hooks: hooks, Err: err})
	}
}

// Limits of the scan for hooks at the start: its duration, and the number of paths in the log.
const (
	hookScanTimeout = 30 * time.Second
	hookExamples    = 10
)

// logHooks logs which repositories have hooks that are not run, so that administrators who come from another server
// know before a push is refused or a hook is ignored.
func (n *Node) logHooks(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, hookScanTimeout)
	defer cancel()
	var examples []string
	hooked := 0
	checked, err := FindHooks(ctx, n.root, n.options.Hidden, func(h HookedRepository) {
		if len(h.Hooks) == 0 {
			return
		}
		if hooked++; len(examples) < hookExamples {
			examples = append(examples, filepath.Join(h.Path, h.Hooks[0].Name))
		}
	})
	complete := err == nil
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return // the node closes, or Ready reports the error
	}
	if hooked == 0 {
		n.log.Debug("no repository has hooks", "repositories", checked, "complete", complete)
		return
	}
	level := slog.LevelWarn // pushes to them are refused
	if n.hooks == receivepack.IgnoreHooks {
		level = slog.LevelInfo
	}
	n.log.Log(ctx, level, "repositories have hooks that are not run", "push.repository_hooks", string(n.hooks),
		"hooked", hooked, "repositories", checked, "complete", complete, "examples", examples)
}

// startHookScan runs logHooks in the background, if the log has its level.
func (n *Node) startHookScan() {
	if n.pushes == nil || n.hooks == receivepack.RunHooks || !n.log.Enabled(n.hookScan.ctx, slog.LevelInfo) {
		return
	}
	n.hookScan.Go(func() { n.logHooks(n.hookScan.ctx) })
}
