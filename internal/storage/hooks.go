package storage

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/packhorse-git/packhorse/internal/receivepack"
	"github.com/packhorse-git/packhorse/internal/repo"
)

// Hooked is a repository with hooks of its own that git would run on a push.
type Hooked struct {
	Path  string // of its git directory, below the root
	Hooks []repo.Hook
	Err   error // why its hooks cannot be told; Hooks is empty then
}

// FindHooks calls found for each repository below a root that has hooks of its own (repo.Hooks), or of which that
// cannot be told. It also looks at submodules of repositories with a working tree. Linked worktrees have the hooks of
// their main repository. Symbolic links are followed to repositories, not to directories of them; what is in the hidden
// directories, and what cannot be read, is left out. It costs a look at each entry below the root, outside of
// repositories. Looked is how many repositories there are. The error is that of ctx, or of a root that cannot be read.
func FindHooks(ctx context.Context, root string, hidden []string, found func(Hooked)) (looked int, err error) {
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
	return s.looked, err
}

type hookScan struct {
	ctx     context.Context
	options repo.Options
	found   func(Hooked)
	looked  int
}

func (s *hookScan) walk(dir string) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	if !s.options.Allows(dir) {
		return nil
	}
	if repo.IsGitDir(dir) {
		s.look(dir)
		dir = filepath.Join(dir, "modules") // of submodules
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir() && e.Name() != ownDir:
			err = s.walk(path)
		case e.Type()&fs.ModeSymlink != 0:
			for _, path := range []string{path, filepath.Join(path, ".git")} {
				if repo.IsGitDir(path) {
					s.look(path)
				}
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *hookScan) look(dir string) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil || !s.options.Allows(real) {
		return
	}
	s.looked++
	below, err := filepath.Rel(s.options.Root, dir)
	if err != nil {
		return
	}
	if hooks, err := repo.PushHooks(real, s.options); err != nil || len(hooks) > 0 {
		s.found(Hooked{Path: below, Hooks: hooks, Err: err})
	}
}

// Bounds of the scan for hooks at the start: how long it may take, and how many paths the log names.
const (
	hookScanLimit = 30 * time.Second
	hookExamples  = 10
)

// tellHooks tells the log which repositories have hooks that are not run: whoever comes from another server is to know
// before a push fails, or takes no notice of them.
func (n *Node) tellHooks(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, hookScanLimit)
	defer cancel()
	var examples []string
	hooked := 0
	looked, err := FindHooks(ctx, n.root, n.options.Hidden, func(h Hooked) {
		if len(h.Hooks) == 0 {
			return
		}
		if hooked++; len(examples) < hookExamples {
			examples = append(examples, filepath.Join(h.Path, h.Hooks[0].Name))
		}
	})
	complete := err == nil
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return // the node closes, or its root is gone, of which others tell
	}
	if hooked == 0 {
		n.log.Debug("no repository has hooks", "repositories", looked, "complete", complete)
		return
	}
	level := slog.LevelWarn // pushes to them are refused
	if n.hooks == receivepack.IgnoreHooks {
		level = slog.LevelInfo
	}
	n.log.Log(ctx, level, "repositories have hooks that are not run", "push.repository_hooks", string(n.hooks), "hooked", hooked,
		"repositories", looked, "complete", complete, "examples", examples)
}

// startTellHooks has tellHooks run in the background, if somebody reads the log.
func (n *Node) startTellHooks() {
	n.background, n.endBackground = context.WithCancel(context.Background())
	if n.pushes == nil || n.hooks == receivepack.RunHooks || !n.log.Enabled(n.background, slog.LevelInfo) {
		return
	}
	n.scanning.Go(func() { n.tellHooks(n.background) })
}
