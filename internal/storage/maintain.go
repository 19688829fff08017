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
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
)

// ClassMaintain is the class of git commands that repack: long ones, of which one at a time is enough.
const ClassMaintain process.Class = "maintain"

// Maintained is what maintenance came to.
type Maintained struct {
	Before, After pack.Counts
	Took          time.Duration
}

const (
	// maintainGrace is how long a command that is killed has for removing its locks.
	maintainGrace = 10 * time.Second
	// abandoned is how old a temporary file among the packs has to be before it is removed: as for git gc.
	abandoned = 14 * 24 * time.Hour
	// staleLock is how old a lock that only maintenance takes has to be before it is removed: no command of it runs for so long.
	staleLock = 6 * time.Hour
	// packRefsLimit bounds what is not stopped when nobody waits for it any more.
	packRefsLimit = time.Minute
	// maintainWindow is the memory of one thread's delta window, in bytes.
	maintainWindow = 256 << 20
)

// Maintain repacks a repository by halves (git-repack(1), --geometric), writes a multi-pack-index, a bitmap and its commit-graph, and packs
// its refs, by git commands that stop when ctx ends. Nobody who reads has to stop, and no object is removed, reachable or not: only copies
// of objects that are in another pack. What is done follows from what the repository is: of one that borrows, only what it has itself is
// joined, without a bitmap; where objects are precious no pack is removed; reftables are git's own to pack.
//
// What takes the place of files that are removed is on disk before that, refs included.
//
// The repository's configuration can make git run no program: see package process. Errors: Exhausted while it is maintained or deleted
// already; those of opening it and of git.
func (n *Node) Maintain(ctx context.Context, path git.RepoPath) (Maintained, error) {
	if n.runner == nil {
		return Maintained{}, fault.New(fault.Unavailable, "this node maintains no repositories")
	}
	h, err := n.acquire(path)
	if err != nil {
		return Maintained{}, err
	}
	defer n.release(h)
	return n.maintainHandle(ctx, h, path, true)
}

// maintainHandle is Maintain for an open repository; refs tells whether these are to be packed.
func (n *Node) maintainHandle(ctx context.Context, h *handle, path git.RepoPath, refs bool) (m Maintained, err error) {
	start := time.Now()
	defer func() {
		m.Took = time.Since(start)
		n.metrics.maintain.WithLabelValues(result(err)).Observe(m.Took.Seconds())
	}()
	done, err := n.claim(h.Common)
	if err != nil {
		return m, err
	}
	defer done()
	if m.Before, err = h.Objects.Count(ctx); err != nil {
		return m, err
	}
	commands, err := maintenance(h, refs)
	if err != nil {
		return m, err
	}
	for _, c := range commands {
		if err := n.maintain(ctx, h, c); err != nil {
			return m, err
		}
	}
	if m.After, err = h.Objects.Count(ctx); err != nil {
		return m, err
	}
	n.log.Info("maintained a repository", "repository", path.String(), "packs_before", m.Before.Packs, "loose_before", m.Before.Loose,
		"packs", m.After.Packs, "seconds", time.Since(start).Seconds())
	return m, nil
}

// claim keeps a repository from being maintained twice at a time, and from being deleted meanwhile.
func (n *Node) claim(commonDir string) (done func(), err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.maintaining[commonDir] {
		return nil, fault.Retry(fault.Exhausted, fault.RetryMuchLater, "the repository is being maintained already")
	}
	n.maintaining[commonDir] = true
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.maintaining, commonDir)
	}, nil
}

// step is one command of maintenance, and what to try if it fails.
type step struct {
	args      []string
	otherwise []string
	alone     bool // args see the repository's own objects only
}

// maintenance is what there is to do for a repository; refs tells whether its refs are to be packed.
func maintenance(h *handle, refs bool) ([]step, error) {
	config := h.Config()
	tables, partial := false, false
	for key, value := range config.All() {
		tables = tables || key == "extensions.refstorage" && value == "reftable"
		partial = partial || key == "extensions.partialclone"
	}
	precious, err := config.Bool("extensions.preciousobjects", false)
	if err != nil {
		return nil, err
	}
	borrows, err := thereIs(filepath.Join(h.Common, "objects/info/alternates"))
	if err != nil {
		return nil, err
	}
	geometric := []string{"repack", "-d", "-l", "-n", "-q", "--geometric=2", "--write-midx"}
	incremental := step{args: []string{"repack", "-d", "-l", "-n", "-q"}}
	index := step{args: []string{"multi-pack-index", "write", "--no-progress"}}
	var steps []step
	switch {
	case precious:
		steps = []step{index}
	case partial:
		steps = []step{incremental, index}
	case borrows: // git before 2.41 would take packs of the other's for the repository's own
		steps = []step{{args: geometric, otherwise: incremental.args, alone: true}, index}
	default: // git refuses a bitmap where not everything is in its packs
		steps = []step{{args: append(geometric[:len(geometric):len(geometric)], "--write-bitmap-index"), otherwise: geometric}}
	}
	split := "--split"
	if borrows { // a chain of our own: the other's may go
		split = "--split=replace"
	}
	steps = append(steps, step{args: []string{"commit-graph", "write", "--reachable", split, "--no-progress"}})
	if refs && !tables {
		steps = append(steps, step{args: []string{"pack-refs", "--all"}})
	}
	return steps, nil
}

func thereIs(path string) (bool, error) {
	id, err := disk.Stat(path)
	return id != disk.ID{}, err
}

// maintain runs one step.
func (n *Node) maintain(ctx context.Context, h *handle, s step) error {
	if s.args[0] == "multi-pack-index" { // git fails where there is nothing to index
		if packs, err := os.ReadDir(h.Objects.Dirs()[0] + "/pack"); err == nil && !slices.ContainsFunc(packs, isPack) {
			return nil
		}
	}
	err := n.runFirst(ctx, h, s)
	if fault.Is(err, fault.Internal) && s.otherwise != nil {
		n.log.Info("cannot maintain a repository as well as could be", "dir", h.Common, "error", err)
		err = n.runStep(ctx, h, s.otherwise)
	}
	return err
}

func isPack(e fs.DirEntry) bool { return strings.HasSuffix(e.Name(), ".pack") }

// runFirst runs what is best.
func (n *Node) runFirst(ctx context.Context, h *handle, s step) error {
	if !s.alone {
		return n.runStep(ctx, h, s.args)
	}
	view, err := tempDir(filepath.Join(n.root, ownDir))
	if err != nil {
		return cannotMake(err)
	}
	defer os.RemoveAll(filepath.Dir(view))
	if err := linkObjects(h.Objects.Dirs()[0], view); err != nil {
		return cannotMake(err)
	}
	return n.runStep(ctx, h, s.args, "GIT_OBJECT_DIRECTORY="+view)
}

// linkObjects makes an object directory that has what another one has, but for what that borrows. Directories are links, so that what git does in
// them it does in the other.
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

// runStep runs one command of git. Where the disk is full the error says so.
func (n *Node) runStep(ctx context.Context, h *handle, args []string, env ...string) error {
	removeAbandoned(filepath.Join(h.Common, "objects/pack"))
	start := time.Now()
	n.unlock(h, time.Time{}, start.Add(-staleLock))
	if args[0] == "pack-refs" { // it takes a moment, and a lock of its would block pushes
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), packRefsLimit)
		defer cancel()
	}
	threads, window := max(1, runtime.GOMAXPROCS(0)/2), int64(maintainWindow)
	if memory := n.runner.Limits(ClassMaintain).Memory; memory > 0 { // all windows together have a quarter of it
		window = min(window, max(memory/4/int64(threads), 1))
	}
	config := []string{
		"safe.directory=*", // whose repositories these are is the operator's business
		"pack.threads=" + strconv.Itoa(threads), "pack.windowMemory=" + strconv.FormatInt(window, 10), "pack.packSizeLimit=0",
		"repack.packKeptObjects=false", "repack.writeBitmaps=false", "core.fsync=objects,derived-metadata,reference",
	}
	var all []string
	for _, setting := range config {
		all = append(all, "-c", setting)
	}
	err := n.git(ctx, process.Command{
		Class: ClassMaintain, Subcommand: args[0], Args: append(append(all, "--git-dir="+h.Common), args...), Env: env, Grace: maintainGrace,
		Config: h.HooksOff(), Repository: h.Common,
	})
	if err != nil && !fault.Is(err, fault.Internal) { // it was told to end
		n.unlock(h, start.Add(-time.Second), time.Now())
	}
	return whyFailed(h.Common, err)
}

// unlock removes locks that only maintenance takes, if they were made in a time of which nobody can hold them: the caller has the claim and
// runs no command. Git leaves them when the machine fails, and when it is told to end in the moment in which it has made one.
func (n *Node) unlock(h *handle, after, before time.Time) {
	for _, lock := range []string{"pack/multi-pack-index.lock", "info/commit-graph.lock", "info/commit-graphs/commit-graph-chain.lock"} {
		path := filepath.Join(h.Common, "objects", lock)
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && info.ModTime().After(after) && info.ModTime().Before(before) {
			n.log.Debug("removed a lock that was left", "path", path)
			_ = os.Remove(path) // or git says that it is there
		}
	}
}

// removeAbandoned removes temporary files that git left among the packs when it was killed.
func removeAbandoned(packDir string) {
	entries, err := os.ReadDir(packDir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "tmp_") && !strings.HasPrefix(e.Name(), ".tmp-") {
			continue
		}
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > abandoned {
			if err := os.Remove(filepath.Join(packDir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return
			}
		}
	}
}
