package storage

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// ClassMaintain is the class of Git commands that repack. They take long, and one at a time is enough.
const ClassMaintain process.Class = "maintain"

// MaintenanceResult is the effect of maintenance.
type MaintenanceResult struct {
	Before, After pack.Counts
	Took          time.Duration
}

const (
	// maintainGrace is how long a cancelled command has to remove its lock files.
	maintainGrace = 10 * time.Second
	// temporaryAge is the age from which temporary files among the packs are removed, as in git gc.
	temporaryAge = 14 * 24 * time.Hour
	// staleLockAge is the age from which a lock file of maintenance is removed. No command of maintenance runs so long.
	staleLockAge = 6 * time.Hour
	// packRefsTimeout bounds git pack-refs, which is not cancelled.
	packRefsTimeout = time.Minute
	// maintainWindow is the memory of one thread's delta window in bytes.
	maintainWindow = 256 << 20
)

// Maintain repacks a repository geometrically (git-repack(1), --geometric). It writes a multi-pack-index, a bitmap and
// its commit-graph, and packs its refs. The Git commands stop when ctx ends. Readers are not disturbed.
//
// Unreachable objects are kept: only copies of objects that are in another pack are removed. In a repository with
// alternates only its own objects are repacked, without a bitmap. With extensions.preciousObjects no pack is removed.
// Reftables are not compacted; Git does that.
//
// Files are removed only after their replacements are on disk, also for refs.
//
// The repository's configuration cannot make Git run programs; see package process. Errors: Exhausted while the
// repository is being maintained or deleted; those of opening it and of Git, with what Git reported.
func (n *Node) Maintain(ctx context.Context, path git.RepoPath) (MaintenanceResult, error) {
	if n.runner == nil {
		return MaintenanceResult{}, fault.New(fault.Unavailable, "this node does not maintain repositories")
	}
	h, err := n.acquireAny(ctx, path)
	if err != nil {
		return MaintenanceResult{}, err
	}
	defer n.release(h)
	m, err := n.maintainHandle(ctx, h, path, true)
	return m, withCause(err, h.Common, n.root)
}

// withCause returns an error whose message for the administrator has the cause, for example the messages of Git,
// without the paths of the repository and of the root.
func withCause(err error, dir, root string) error {
	e, ok := errors.AsType[*fault.Error](err)
	if !ok || e.Err == nil {
		return err
	}
	text := strings.ReplaceAll(strings.ReplaceAll(e.Error(), dir+"/", ""), root+"/", "")
	return &fault.Error{Kind: e.Kind, Msg: text, RetryAfter: e.RetryAfter, CallerLimit: e.CallerLimit}
}

// maintainHandle is Maintain for an open repository. refs reports whether to pack its refs.
func (n *Node) maintainHandle(ctx context.Context, h *handle, path git.RepoPath, refs bool) (m MaintenanceResult,
	err error) {
	start := time.Now()
	defer func() { m.Took = time.Since(start) }()
	release, err := n.claims.claim(h.Common)
	if err != nil {
		return m, err
	}
	defer release()
	if m.Before, err = h.place.Counts(ctx); err != nil {
		return m, err
	}
	if err := h.place.Maintain(ctx, n.runMaintenance, refs); err != nil {
		return m, err
	}
	if m.After, err = h.place.Counts(ctx); err != nil {
		return m, err
	}
	n.log.Info("maintained a repository", "repository", path.String(), "packs_before", m.Before.Packs,
		"loose_before", m.Before.Loose, "packs", m.After.Packs, "seconds", time.Since(start).Seconds())
	return m, nil
}

// Maintain implements Place.
func (p *dirPlace) Maintain(ctx context.Context, git RunGit, refs bool) error {
	steps, err := maintenanceSteps(p.repo, refs)
	if err != nil {
		return err
	}
	for _, s := range steps {
		if err := p.runStep(ctx, git, s); err != nil {
			return err
		}
	}
	return nil
}

// claims are the repositories, by common directory, that are being maintained, deleted or cleaned up. The zero value is
// empty.
type claims struct {
	mu   sync.Mutex
	dirs map[string]bool
}

// claim claims a repository until release is called. The error is Exhausted if it is claimed already.
func (c *claims) claim(commonDir string) (release func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dirs[commonDir] {
		return nil, fault.Retry(fault.Exhausted, fault.RetryMuchLater, "the repository is being maintained")
	}
	if c.dirs == nil {
		c.dirs = make(map[string]bool)
	}
	c.dirs[commonDir] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.dirs, commonDir)
	}, nil
}

// maintenanceStep is one Git command of maintenance.
type maintenanceStep struct {
	args     []string
	fallback []string // run if the command fails; nil: none
	ownOnly  bool     // args see only the repository's own objects
}

// maintenanceSteps returns the steps for a repository. refs reports whether to pack its refs.
func maintenanceSteps(r *repo.Repo, refs bool) ([]maintenanceStep, error) {
	config := r.Config()
	tables, partial := false, false
	for key, value := range config.All() {
		tables = tables || key == "extensions.refstorage" && value == "reftable"
		partial = partial || key == "extensions.partialclone"
	}
	precious, err := config.Bool("extensions.preciousobjects", false)
	if err != nil {
		return nil, err
	}
	borrows, err := exists(filepath.Join(r.Common, "objects/info/alternates"))
	if err != nil {
		return nil, err
	}
	geometric := []string{"repack", "-d", "-l", "-n", "-q", "--geometric=2", "--write-midx"}
	incremental := maintenanceStep{args: []string{"repack", "-d", "-l", "-n", "-q"}}
	index := maintenanceStep{args: []string{"multi-pack-index", "write", "--no-progress"}}
	var steps []maintenanceStep
	switch {
	case precious:
		steps = []maintenanceStep{index}
	case partial:
		steps = []maintenanceStep{incremental, index}
	case borrows: // Git before 2.41 would treat borrowed packs as the repository's own
		steps = []maintenanceStep{{args: geometric, fallback: incremental.args, ownOnly: true}, index}
	default: // Git refuses a bitmap if some objects are not in its packs
		steps = []maintenanceStep{{args: append(geometric[:len(geometric):len(geometric)], "--write-bitmap-index"),
			fallback: geometric}}
	}
	split := "--split"
	if borrows { // a separate chain, because the lender's may be removed
		split = "--split=replace"
	}
	steps = append(steps, maintenanceStep{args: []string{"commit-graph", "write", "--reachable", split, "--no-progress"}})
	if refs && !tables {
		steps = append(steps, maintenanceStep{args: []string{"pack-refs", "--all"}})
	}
	return steps, nil
}

func exists(path string) (bool, error) {
	id, err := disk.Stat(path)
	return id != disk.ID{}, err
}

// runStep runs one step.
func (p *dirPlace) runStep(ctx context.Context, git RunGit, s maintenanceStep) error {
	r := p.repo
	if s.args[0] == "multi-pack-index" { // Git fails without packs
		if packs, err := os.ReadDir(r.Objects.Dirs()[0] + "/pack"); err == nil && !slices.ContainsFunc(packs, isPack) {
			return nil
		}
	}
	err := p.runPreferred(ctx, git, s)
	if fault.Is(err, fault.Internal) && s.fallback != nil {
		p.log.Info("cannot repack a repository with a bitmap or by size, using the fallback", "dir", r.Common, "error", err)
		err = git(ctx, r, s.fallback)
	}
	return err
}

func isPack(e fs.DirEntry) bool { return strings.HasSuffix(e.Name(), ".pack") }

// runPreferred runs the command of a step.
func (p *dirPlace) runPreferred(ctx context.Context, git RunGit, s maintenanceStep) error {
	r := p.repo
	if !s.ownOnly {
		return git(ctx, r, s.args)
	}
	view, err := tempDir(filepath.Join(p.root, repo.PrivateDir))
	if err != nil {
		return writeError(err)
	}
	defer os.RemoveAll(filepath.Dir(view))
	if err := linkObjects(r.Objects.Dirs()[0], view); err != nil {
		return writeError(err)
	}
	return git(ctx, r, s.args, "GIT_OBJECT_DIRECTORY="+view)
}

// linkObjects creates an object directory with the contents of another one, except its alternates. Its directories are
// links, so that Git works in the original ones.
func linkObjects(objects, view string) error {
	if err := os.Mkdir(view, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(objects)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if name := e.Name(); name == "pack" || len(name) == 2 && strings.Trim(name, "0123456789abcdef") == "" {
			if err := os.Symlink(filepath.Join(objects, name), filepath.Join(view, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// runMaintenance runs one Git command. The error names a full disk as the cause.
func (n *Node) runMaintenance(ctx context.Context, r *repo.Repo, args []string, env ...string) error {
	removeTemporaryFiles(filepath.Join(r.Common, "objects/pack"))
	start := time.Now()
	n.removeStaleLocks(r, time.Time{}, start.Add(-staleLockAge))
	if args[0] == "pack-refs" { // it is short, and its lock file would block pushes
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), packRefsTimeout)
		defer cancel()
	}
	threads, window := max(1, runtime.GOMAXPROCS(0)/2), int64(maintainWindow)
	if memory := n.runner.Limits(ClassMaintain).Memory; memory > 0 { // a quarter of it for all windows together
		window = min(window, max(memory/4/int64(threads), 1))
	}
	var all []string
	for _, setting := range []string{
		"safe.directory=*", // the operator decides whose repositories are served
		"pack.threads=" + strconv.Itoa(threads), "pack.windowMemory=" + strconv.FormatInt(window, 10), "pack.packSizeLimit=0",
		"repack.packKeptObjects=false", "repack.writeBitmaps=false", "core.fsync=objects,derived-metadata,reference",
	} {
		all = append(all, "-c", setting)
	}
	err := runGit(ctx, n.runner, process.Command{
		Class: ClassMaintain, Subcommand: args[0], Args: append(append(all, "--git-dir="+r.Common), args...), Env: env,
		Grace: maintainGrace, Config: r.HooksOff(), Repository: r.Common,
	})
	if err != nil && !fault.Is(err, fault.Internal) { // it was cancelled
		n.removeStaleLocks(r, start.Add(-time.Second), time.Now())
	}
	return gitError(r.Common, err)
}

// removeStaleLocks removes lock files of maintenance that were created in an interval for which no process can hold
// them: the caller has claimed the repository and runs no command. Git leaves them after a power failure, and when it
// is cancelled just after it has created one.
func (n *Node) removeStaleLocks(r *repo.Repo, after, before time.Time) {
	for _, lock := range []string{"pack/multi-pack-index.lock", "info/commit-graph.lock",
		"info/commit-graphs/commit-graph-chain.lock"} {
		path := filepath.Join(r.Common, "objects", lock)
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && info.ModTime().After(after) &&
			info.ModTime().Before(before) {
			n.log.Debug("removed a stale lock file", "path", path)
			_ = os.Remove(path) // if this fails, Git reports the lock file
		}
	}
}

// removeTemporaryFiles removes temporary files that git left among the packs when it was killed.
func removeTemporaryFiles(packDir string) {
	entries, err := os.ReadDir(packDir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "tmp_") && !strings.HasPrefix(e.Name(), ".tmp-") {
			continue
		}
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > temporaryAge {
			if err := os.Remove(filepath.Join(packDir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return
			}
		}
	}
}
