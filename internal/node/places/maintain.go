package places

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// ClassMaintain is the class of Git commands that repack. They take long, and one at a time is enough.
const ClassMaintain process.Class = "maintain"

const (
	// MaintainGrace is how long a cancelled command has to remove its lock files.
	MaintainGrace = 10 * time.Second
	// temporaryAge is the age from which temporary files among the packs are removed, as in git gc.
	temporaryAge = 14 * 24 * time.Hour
	// staleLockAge is the age from which a lock file of maintenance is removed. No command of maintenance runs so long.
	staleLockAge = 6 * time.Hour
	// staleGraphLockAge is that of a commit-graph. Git has its lock file only while it writes the file.
	staleGraphLockAge = time.Minute
	// packRefsTimeout bounds git pack-refs, which is not cancelled.
	packRefsTimeout = time.Minute
	// maintainWindow is the memory of one thread's delta window in bytes.
	maintainWindow = 256 << 20
)

// Maintain implements Place.
func (p *dirPlace) Maintain(ctx context.Context, git RunGit, o MaintainOptions) error {
	steps, err := maintenanceSteps(p.repo, o.PackRefs)
	if err != nil {
		return err
	}
	for _, s := range steps {
		if err := p.runStep(ctx, git, s); err != nil {
			return err
		}
	}
	UpdateTip(ctx, git, p.repo, o.TipPack, p.Log)
	return nil
}

// Claims are the repositories, by common directory, that are being maintained, deleted or cleaned up. The zero value is
// empty.
type Claims struct {
	Gates receivepack.Gates // between removals of objects and changes of refs

	mu   sync.Mutex
	dirs map[string]bool
}

// Claim claims a repository until release is called. The error is Exhausted if it is claimed already.
func (c *Claims) Claim(commonDir string) (release func(), err error) {
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
	tables, _ := config.Get("extensions.refstorage")
	precious, err := config.Bool("extensions.preciousobjects", false)
	if err != nil {
		return nil, err
	}
	borrows, err := exists(filepath.Join(r.Common, "objects/info/alternates"))
	if err != nil {
		return nil, err
	}
	geometric := []string{"repack", "-d", "-l", "-n", "-q", "--geometric=2", "--write-midx"}
	if kept, err := hasKeptPacks(r.Objects.Dirs()[0]); err != nil {
		return nil, err
	} else if !kept {
		// A push of a pack that exists adds a .keep file to it. Otherwise Git would leave its objects out of the new pack,
		// and then remove it, because it had no .keep file at the start.
		geometric = append(geometric, "--pack-kept-objects")
	}
	incremental := maintenanceStep{args: []string{"repack", "-d", "-l", "-n", "-q"}}
	index := maintenanceStep{args: []string{"multi-pack-index", "write", "--no-progress"}}
	var steps []maintenanceStep
	switch {
	case precious:
		steps = []maintenanceStep{index}
	case isPartial(config):
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
	commits := maintenanceStep{args: []string{"commit-graph", "write", "--reachable", split, "--no-progress"}}
	if !isPartial(config) { // otherwise Git would fetch trees
		commits.fallback = commits.args
		commits.args = append(commits.args[:len(commits.args):len(commits.args)], "--changed-paths")
	}
	steps = append(steps, commits)
	if refs && tables != "reftable" {
		steps = append(steps, maintenanceStep{args: []string{"pack-refs", "--all"}})
	}
	return steps, nil
}

// hasKeptPacks reports whether an object directory has a .keep file that is not of a push.
func hasKeptPacks(objects string) (bool, error) {
	dir := os.DirFS(objects)
	keep, err := fs.Glob(dir, "pack/*.keep")
	for _, path := range keep {
		text, readErr := fs.ReadFile(dir, path)
		if readErr == nil && !strings.HasPrefix(string(text), "receive-pack ") {
			return true, err
		}
		if !errors.Is(readErr, fs.ErrNotExist) {
			err = errors.Join(err, readErr)
		}
	}
	return false, err
}

// isPartial reports whether a repository may lack objects that another one has: git before 2.41 does not set
// extensions.partialClone in a bare clone.
func isPartial(c repo.Config) bool {
	for key := range c.All() {
		if key == "extensions.partialclone" || strings.HasPrefix(key, "remote.") && strings.HasSuffix(key, ".promisor") {
			return true
		}
	}
	return false
}

func exists(path string) (bool, error) {
	id, err := disk.Stat(path)
	return id != disk.ID{}, err
}

// runStep runs one step.
func (p *dirPlace) runStep(ctx context.Context, git RunGit, s maintenanceStep) error {
	r := p.repo
	if s.args[0] == "multi-pack-index" { // Git fails without packs
		packs, err := os.ReadDir(r.Objects.Dirs()[0] + "/pack") // a fork may have no such directory
		if (err == nil || errors.Is(err, fs.ErrNotExist)) && !slices.ContainsFunc(packs, isPack) {
			return nil
		}
	}
	err := p.runPreferred(ctx, git, s)
	if fault.Is(err, fault.Internal) && s.fallback != nil {
		p.Log.Info("a step of maintenance failed, using the fallback", "dir", r.Common, "error", err)
		err = git(ctx, r, GitCommand{Args: s.fallback})
	}
	return err
}

func isPack(e fs.DirEntry) bool { return strings.HasSuffix(e.Name(), ".pack") }

// runPreferred runs the command of a step.
func (p *dirPlace) runPreferred(ctx context.Context, git RunGit, s maintenanceStep) error {
	r := p.repo
	if !s.ownOnly {
		return git(ctx, r, GitCommand{Args: s.args})
	}
	view, err := tempDir(filepath.Join(p.root, repo.PrivateDir))
	if err != nil {
		return WriteError(err)
	}
	defer os.RemoveAll(filepath.Dir(view))
	if err := linkObjects(r.Objects.Dirs()[0], view); err != nil {
		return WriteError(err)
	}
	return git(ctx, r, GitCommand{Args: s.args, Env: []string{"GIT_OBJECT_DIRECTORY=" + view}})
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
		if name := e.Name(); name == "pack" || isFanout(name) {
			if err := os.Symlink(filepath.Join(objects, name), filepath.Join(view, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Maintainer runs Git commands of maintenance.
type Maintainer struct {
	Runner *process.Runner
	Log    *slog.Logger
}

// Run runs one Git command. It implements RunGit. The error names a full disk as the cause.
func (m Maintainer) Run(ctx context.Context, r *repo.Repo, c GitCommand) error {
	removeTemporaryFiles(filepath.Join(r.Common, "objects/pack"))
	start := time.Now()
	m.removeStaleLocks(r, time.Time{})
	if c.Args[0] == "pack-refs" { // it is short, and its lock file would block pushes
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), packRefsTimeout)
		defer cancel()
	}
	threads, window := max(1, runtime.GOMAXPROCS(0)/2), int64(maintainWindow)
	if memory := m.Runner.Limits(ClassMaintain).Memory; memory > 0 { // a quarter of it for all windows together
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
	command := process.Command{
		Class: ClassMaintain, Subcommand: c.Args[0], Args: append(append(all, "--git-dir="+r.Common), c.Args...), Env: c.Env,
		Stdin: strings.NewReader(c.Stdin), Grace: MaintainGrace, Config: r.HooksOff(), Repository: r.Common,
	}
	if c.Input != nil {
		command.Stdin = c.Input
	}
	var err error
	if c.Output == nil {
		err = m.Runner.Run(ctx, command)
	} else if _, err = m.Runner.Read(ctx, command, c.Output); errors.Is(err, errStop) {
		return err
	}
	if err != nil && !fault.Is(err, fault.Internal) { // it was cancelled
		m.removeStaleLocks(r, start)
	}
	return GitError(r.Common, err)
}

// removeStaleLocks removes lock files of maintenance that no process can hold: the caller has claimed the repository
// and runs no command. They are old, or from after the beginning of a command that was cancelled. Git leaves them after
// a power failure, when it is killed, and when it is cancelled just after it has created one.
func (m Maintainer) removeStaleLocks(r *repo.Repo, cancelled time.Time) {
	for lock, age := range map[string]time.Duration{"pack/multi-pack-index.lock": staleLockAge,
		"info/commit-graph.lock": staleGraphLockAge, "info/commit-graphs/commit-graph-chain.lock": staleGraphLockAge} {
		path := filepath.Join(r.Common, "objects", lock)
		info, err := os.Lstat(path)
		if err == nil && info.Mode().IsRegular() && (time.Since(info.ModTime()) > age ||
			!cancelled.IsZero() && info.ModTime().After(cancelled.Add(-time.Second))) {
			m.Log.Debug("removed a stale lock file", "path", path)
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
