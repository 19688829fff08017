package packsource

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// ClassPack is the class of git processes that make packs.
const ClassPack process.Class = "pack"

// GitOptions are the options of `git pack-objects`.
type GitOptions struct {
	// Scratch is the directory for temporary git directories. NewGit removes its content. No other program may use it.
	Scratch string
	// Threads is the number of threads of one process. 0 means the usable CPUs (GOMAXPROCS, which follows quotas of
	// control groups) divided by the slots of ClassPack.
	Threads int
	// Memory is the memory limit of one process in bytes (process.Limits.Memory). Git's buffers are sized to fit into it.
	// 0 means no limit.
	Memory int64
	// Machine is the memory of the machine in bytes; 0 means unknown. If Memory is 0, git's buffers in the processes of
	// all slots together get at most half of it, as far as git can limit them.
	Machine int64

	// Verifier compares the packs of a repository with their checksums while a pack is made from them, which git does
	// not do. Nil: nothing is verified.
	Verifier *pack.Verifier
	// Damaged is called if the packs of a repository are damaged: before Send returns, or later if reading them takes
	// longer than verifyPatience. It may be nil.
	Damaged func(Repository)
}

// Before it sends the end of a pack, Send waits for the verification of the repository's packs. The maximum wait is the
// time since Open, within these bounds.
const (
	leastVerifyPatience = 200 * time.Millisecond
	verifyPatience      = time.Second
)

// Git is the Source that runs `git pack-objects`, as git upload-pack does. The process does not run in the served
// repository. It runs in an empty git directory and uses the object directory of the repository (GIT_OBJECT_DIRECTORY).
// So only the Spec determines the pack. The configuration, hooks, replace refs and grafts of the repository and the
// tags of hidden refs do not. The files of the object directory have their usual effect: alternates, multi-pack-index,
// bitmaps, commit-graph, and deltas that can be reused.
type Git struct {
	runner  *process.Runner
	options GitOptions
	pauses  pauses
}

// outputBuffer is the requested size of the pipe of git's output in bytes.
const outputBuffer = 1 << 20

// pauses are times without output of git after which the source acts.
type pauses struct {
	flush  time.Duration // then progress, and bytes that do not fill a packet, are sent
	linger time.Duration // maximum time between the end of git and the end of its output
	filter time.Duration // maximum time before the pack, if the filter selects by paths
}

// NewGit returns the Source and creates its scratch directories. It removes the files of an earlier run.
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
	g := &Git{runner: runner, options: o, pauses: pauses{
		flush: 100 * time.Millisecond, linger: 2 * time.Second, filter: FilterTime,
	}}
	for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
		if err := makeGitDir(g.EmptyDir(format), format, nil); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// EmptyDir returns a git directory without refs and objects, for commands that read the objects of a repository.
func (g *Git) EmptyDir(format git.ObjectFormat) string {
	return filepath.Join(g.options.Scratch, format.String()+".git")
}

// makeGitDir creates a git directory without objects. Its only refs are the tags.
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

// packedTags returns the content of a packed-refs file (git-pack-refs(1)) with the tags. Such a file is sorted by name.
func packedTags(tags []Tag) string {
	b := []byte(refs.PackedHeader)
	for i, tag := range tags {
		b = refs.AppendPacked(b, &refs.Ref{Name: git.RefName(fmt.Sprintf("refs/tags/%08d", i)), ID: tag.ID,
			Peeled: tag.Peeled})
	}
	return string(b)
}

// Open starts git and returns when it runs. Cancelling ctx kills git, as Close does.
func (g *Git) Open(ctx context.Context, spec *Spec) (Pack, error) { return g.OpenIn(ctx, spec, nil) }

// Acquire waits for a slot for a pack.
func (g *Git) Acquire(ctx context.Context, spec *Spec) (*process.Slot, error) {
	objects, err := filepath.Abs(spec.Repo.Objects)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, "cannot find the repository's objects", err)
	}
	return g.runner.Acquire(ctx, &process.Command{Class: ClassPack, Caller: spec.Caller, Repository: objects,
		Subcommand: "pack-objects"})
}

// OpenIn is Open in a slot that Acquire has returned. Git takes the slot over if there is no error.
func (g *Git) OpenIn(ctx context.Context, spec *Spec, slot *process.Slot) (Pack, error) {
	objects, err := filepath.Abs(spec.Repo.Objects)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, "cannot find the repository's objects", err)
	}
	dir, temporary := g.EmptyDir(spec.Repo.Format), ""
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
		trailer: spec.Repo.Format.Size(), temporary: temporary, usesPaths: strings.Contains(spec.Filter, "sparse:")}
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
		Slot:         slot,
	})
	if err != nil {
		p.cancel()
		p.removeTemporary()
		return nil, err
	}
	p.child = child
	return p, nil
}

// verify starts the verification of a repository's packs. It returns nil without a Verifier.
func (g *Git) verify(r Repository) *pack.Verification {
	if g.options.Verifier == nil {
		return nil
	}
	store := r.Store
	if store == nil {
		var err error
		if store, err = pack.Open(r.Objects, pack.Options{Format: r.Format}); err != nil {
			return nil // git reports it
		}
		defer store.Close()
	}
	return g.options.Verifier.Begin(store, func(*pack.Damage) {
		if g.options.Damaged != nil {
			g.options.Damaged(r)
		}
	})
}
