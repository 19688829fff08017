package packsource

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
)

// ClassPack is the class of git processes that make packs.
const ClassPack process.Class = "pack"

// WindowDefault leaves a delta window to git.
const WindowDefault = -1

// GitOptions tunes `git pack-objects`; docs/decisions/0001-pack-objects-settings.md has the measurements behind the
// defaults.
type GitOptions struct {
	Scratch string // a directory of ours alone, made if it is missing and emptied
	// Of one process; 0: the CPUs that we may use (GOMAXPROCS, which knows quotas of control groups) divided by the
	// slots of ClassPack.
	Threads int
	// Window is the delta window (pack.window); WindowDefault: git's.
	Window int
	// ShallowWindow is that of packs with a shallow boundary that leave nothing out: few versions of many files.
	ShallowWindow int
	// SnapshotWindow is that of such packs in which every want is shallow itself (depth 1), so that each file comes in
	// one version.
	SnapshotWindow int
	// ShallowCompression is the zlib level for packs with a shallow boundary. 0 means 3, -1 git's default. Such packs
	// reuse fewer stored deltas, so compression is a large part of their cost.
	ShallowCompression int
	WindowMemory       int64 // limit in bytes of the delta window of one thread; 0 is 256 MiB, -1 no limit
	// Bytes that the process is let have (process.Limits.Memory), which git's buffers have to fit into; 0: no limit.
	Memory int64
	// Machine is the memory of the machine in bytes. Without a limit, the processes of all slots may use half of it for
	// buffers that can be limited. 0: unknown.
	Machine int64

	// Verifier compares the packs of a repository with their checksums while a pack is made from them, which git does
	// not do. Nil: nothing is verified.
	Verifier *pack.Verifier
	// Damaged, unless nil, is called if the packs of a repository are damaged: before the end of Send, or later if
	// reading them takes longer than verifyPatience.
	Damaged func(Repository)
}

// The end of a pack waits for the verification of its repository for as long as the pack took until then, within these
// bounds.
const (
	leastVerifyPatience = 200 * time.Millisecond
	verifyPatience      = time.Second
)

// Git is the Source that runs `git pack-objects`, as git's own upload-pack does, but not in the served repository. It
// runs in an empty git directory of ours, with the repository's object directory (GIT_OBJECT_DIRECTORY). So only the
// Spec determines the pack: not the repository's configuration, hooks, replace refs or grafts, nor the tags of hidden
// refs. Everything in the object directory still works: alternates, multi-pack-index, bitmaps, commit-graph, and the
// reuse of deltas.
type Git struct {
	runner  *process.Runner
	options GitOptions
	pauses  pauses
}

// pauses of git after which something is done.
type pauses struct {
	flush  time.Duration // bytes that do not fill a packet, and progress, are sent after this time
	linger time.Duration // maximum time between the end of git and the end of its output
}

// NewGit makes the Source and its scratch directories. It removes the files of an earlier run.
func NewGit(runner *process.Runner, o GitOptions) (*Git, error) {
	var err error
	if o.Scratch, err = filepath.Abs(o.Scratch); err == nil {
		err = os.RemoveAll(o.Scratch)
	}
	if err != nil {
		return nil, fmt.Errorf("empty the scratch directory: %w", err)
	}
	if o.Threads <= 0 {
		o.Threads = max(1, runtime.GOMAXPROCS(0)/max(1, runner.Slots(ClassPack)))
	}
	if o.ShallowCompression == 0 {
		o.ShallowCompression = 3
	}
	if o.WindowMemory == 0 {
		o.WindowMemory = 256 << 20
	}
	g := &Git{runner: runner, options: o, pauses: pauses{
		flush: 100 * time.Millisecond, linger: 2 * time.Second,
	}}
	for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
		if err := makeGitDir(g.plainDir(format), format, nil); err != nil {
			return nil, err
		}
	}
	return g, nil
}

func (g *Git) plainDir(format git.ObjectFormat) string {
	return filepath.Join(g.options.Scratch, format.String()+".git")
}

// makeGitDir makes a git directory that has no objects and no refs but the tags.
func makeGitDir(dir string, format git.ObjectFormat, tags []Tag) error {
	for _, sub := range []string{"objects", "refs"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return fmt.Errorf("make a scratch git directory: %w", err)
		}
	}
	config := "[core]\n\trepositoryFormatVersion = 1\n\tbare = true\n[extensions]\n\tobjectFormat = " +
		format.String() + "\n"
	files := map[string]string{"HEAD": "ref: refs/heads/none\n", "config": config}
	if len(tags) > 0 {
		files["packed-refs"] = packedTags(tags)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("make a scratch git directory: %w", err)
		}
	}
	return nil
}

// packedTags writes tags as a packed-refs file (git-pack-refs(1)), which needs its refs sorted by name.
func packedTags(tags []Tag) string {
	b := []byte("# pack-refs with: peeled fully-peeled sorted \n")
	for i, tag := range tags {
		b = tag.ID.AppendHex(b)
		b = fmt.Appendf(b, " refs/tags/%08d\n^", i)
		b = append(tag.Peeled.AppendHex(b), '\n')
	}
	return string(b)
}

// Open starts git and returns when it runs. Ending ctx ends the pack, as Close does.
func (g *Git) Open(ctx context.Context, spec *Spec) (Pack, error) {
	objects, err := filepath.Abs(spec.Repo.Objects)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, "cannot find the repository's objects", err)
	}
	dir, temporary := g.plainDir(spec.Repo.Format), ""
	if len(spec.Tags) > 0 {
		if temporary, err = os.MkdirTemp(g.options.Scratch, "tags-*.git"); err == nil {
			err = makeGitDir(temporary, spec.Repo.Format, spec.Tags)
		}
		if err != nil {
			os.RemoveAll(temporary)
			return nil, fault.Wrap(fault.Unavailable, "cannot write to the state directory", err)
		}
		dir = temporary
	}
	p := &gitPack{pauses: g.pauses, opened: time.Now(), verification: g.verify(spec.Repo),
		trailer: spec.Repo.Format.Size(), temporary: temporary}
	ctx, p.cancel = context.WithCancel(ctx)
	p.abandoned = ctx.Err
	child, err := g.runner.Start(ctx, process.Command{
		Class:        ClassPack,
		Caller:       spec.Caller,
		Repository:   objects,
		Subcommand:   "pack-objects",
		Args:         g.arguments(dir, spec),
		Env:          []string{"GIT_OBJECT_DIRECTORY=" + objects},
		Stdin:        bytes.NewReader(revisions(spec)),
		Stderr:       p.progress.add,
		StdoutBuffer: outputBuffer,
	})
	if err != nil {
		p.cancel()
		p.removeTemporary()
		return nil, err
	}
	p.child = child
	return p, nil
}

// verify starts the verification of a repository's packs; nil if there is none.
func (g *Git) verify(r Repository) *pack.Verification {
	if g.options.Verifier == nil {
		return nil
	}
	return g.options.Verifier.Begin(r.Objects, r.Format, func(*pack.Damage) {
		if g.options.Damaged != nil {
			g.options.Damaged(r)
		}
	})
}
