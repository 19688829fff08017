package doctor

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// ClassDeep is the class of Git commands that read all objects of a repository.
const ClassDeep process.Class = "deep"

const (
	maxMissing = 100      // refs without their objects after which the look-ups end
	maxFsck    = 64 << 10 // bytes of git fsck's output
)

func (x *examination) missing(text string) {
	x.add(Problem, "missing-objects", text+": clones and fetches fail",
		"restore the repository from a backup, or fetch the objects from a clone that has them; "+
			"git fsck --connectivity-only lists them")
}

// packs finds packs that Git does not open, and reports whether there are any.
func (x *examination) packs(ctx context.Context, r *repo.Repo) (faults bool) {
	packs, err := r.Objects.Unusable(ctx)
	if err != nil {
		x.refused(err)
		return true
	}
	for _, fault := range packs {
		x.add(Problem, "unusable-pack", fault.Error()+": clones and maintenance fail",
			"restore the file from a backup, or fetch its objects from a clone; it is in "+
				ShellWord(r.Objects.Dirs()[0]+"/pack"))
	}
	return len(packs) > 0
}

// checksums finds a pack or an index that is damaged, and reports whether there is one. It reads all packs.
func (x *examination) checksums(ctx context.Context, r *repo.Repo) (faults bool) {
	v := pack.NewVerifier(slog.New(slog.DiscardHandler), nil)
	defer v.Close()
	verification := v.Begin(r.Objects, func(*pack.Damage) {})
	select {
	case <-verification.Done():
	case <-ctx.Done():
		return false
	}
	damage := verification.Damage()
	if damage != nil {
		x.add(Problem, "damaged-pack", damage.Error()+": clones get damaged objects, or fail",
			"restore the file from a backup (packhorse restore), or fetch its objects from a clone")
	}
	return damage != nil
}

// ownDirs are the directories of a repository that inside does not search. Some have repositories of its own.
var ownDirs = []string{"objects", "refs", "logs", "hooks", "modules", "worktrees", "lfs", "reftable"}

// inside finds repositories inside of the repository or its working tree.
func (x *examination) inside() {
	dir := x.dir
	if filepath.Base(dir) == ".git" {
		dir = filepath.Dir(dir)
	}
	entries := 0
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if entries++; err != nil || !e.IsDir() || path == dir {
			return nil
		}
		if entries > maxEntries || path == x.dir || dir == x.dir && filepath.Dir(path) == dir &&
			slices.Contains(ownDirs, e.Name()) {
			return fs.SkipDir
		}
		if !repo.IsGitDir(path) {
			return nil
		}
		x.add(Problem, "not-served", strings.TrimPrefix(path, dir+"/")+" in it looks like a repository and is not served",
			"move "+ShellWord(path)+" beside this repository, or out of the root")
		return fs.SkipDir
	})
}

// tips finds refs whose objects are missing, and reports whether there are any.
func (x *examination) tips(snap *refs.Snapshot, r *repo.Repo) (faults bool) {
	missing, err := r.MissingTips(snap, maxMissing)
	if err != nil {
		x.refused(err)
	} else if len(missing) > 0 {
		x.missing(fmt.Sprintf("objects of %d refs are missing, the first is %s of %s", len(missing), missing[0].ID,
			missing[0].Name))
	}
	return err != nil || len(missing) > 0
}

// connected has Git look for all objects that refs reach. It does not read the content of files.
func (x *examination) connected(ctx context.Context, r *repo.Repo) {
	child, err := x.Deep.Start(ctx, process.Command{Class: ClassDeep, Subcommand: "fsck", Config: r.HooksOff(),
		Repository: r.Common, Args: []string{"-c", "safe.directory=*", "--git-dir=" + r.Common, "fsck", "--connectivity-only",
			"--no-dangling", "--no-progress"}})
	if err != nil {
		x.refused(err)
		return
	}
	text, _ := io.ReadAll(io.LimitReader(child.Stdout(), maxFsck))
	_, _ = io.Copy(io.Discard, child.Stdout())
	if _, err = child.Wait(); err == nil || ctx.Err() != nil {
		return
	}
	var missing []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "missing ") {
			missing = append(missing, strings.TrimSpace(line))
		}
	}
	if n := len(missing); n > 0 {
		x.missing(fmt.Sprintf("%d objects are missing, the first is %s", n, strings.TrimPrefix(missing[0], "missing ")))
		return
	}
	x.add(Problem, "fsck", err.Error(), "repair it, or restore it from a backup; run git fsck in "+ShellWord(x.dir))
}
