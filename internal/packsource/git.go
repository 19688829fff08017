package packsource

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
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

// gitBigFile is core.bigFileThreshold as git has it: from there on no file is in memory as a whole.
const gitBigFile = 512 << 20

// gitDeltaCache is pack.deltaCacheSize as git has it.
const gitDeltaCache = 256 << 20

// windowMemory is for one thread of a process that should have so much memory: all windows together have a quarter of
// that at most. 0 or less: no bound.
func (o *GitOptions) windowMemory(share int64) int64 {
	if share == 0 {
		return o.WindowMemory
	}
	most := max(share/4/int64(max(o.Threads, 1)), 1)
	if o.WindowMemory <= 0 {
		return most
	}
	return min(o.WindowMemory, most)
}

// arguments is the command line. Nothing in it comes from a client but the filter, which is canonical.
func (g *Git) arguments(dir string, spec *Spec) []string {
	args := []string{"--git-dir=" + dir}
	set := func(key string, value int64) { args = append(args, "-c", key+"="+strconv.FormatInt(value, 10)) }
	set("pack.threads", int64(g.options.Threads))
	share := g.options.Memory
	if share == 0 {
		share = g.options.Machine / 2 / int64(max(1, g.runner.Slots(ClassPack)))
		if share > 0 && share/8 < gitDeltaCache {
			set("pack.deltaCacheSize", share/8)
		}
	}
	if window := g.options.windowMemory(share); window > 0 {
		set("pack.windowMemory", window)
	}
	if m := g.options.Memory; m > 0 { // the rest is for the lists of objects
		set("pack.deltaCacheSize", m/8)
		set("core.deltaBaseCacheLimit", m/8)
		set("core.bigFileThreshold", min(m/8, gitBigFile))
	}
	if window := g.window(spec); window != WindowDefault {
		set("pack.window", int64(window))
	}
	if len(spec.Shallow) > 0 {
		if g.options.ShallowCompression > 0 {
			set("pack.compression", int64(g.options.ShallowCompression))
		}
		args = append(args, "--shallow-file", "") // git takes its value only as an argument of its own
	}
	args = append(args, "pack-objects", "--revs", "--stdout", "--progress")
	for _, flag := range []struct {
		on   bool
		name string
	}{
		{spec.Thin, "--thin"}, {len(spec.Shallow) > 0, "--shallow"}, {spec.Offset, "--delta-base-offset"},
		{len(spec.Tags) > 0, "--include-tag"}, {spec.Filter != "", "--filter=" + spec.Filter},
	} {
		if flag.on {
			args = append(args, flag.name)
		}
	}
	return args
}

func (g *Git) window(spec *Spec) int {
	if len(spec.Shallow) == 0 || len(spec.Haves) > 0 {
		return g.options.Window
	}
	for _, want := range spec.Wants {
		if _, shallow := slices.BinarySearchFunc(spec.Shallow, want, git.ObjectID.Compare); !shallow {
			return g.options.ShallowWindow
		}
	}
	return g.options.SnapshotWindow
}

// revisions is the input of pack-objects: grafts, objects to reach, objects to leave out.
func revisions(spec *Spec) []byte {
	b := make([]byte, 0,
		(len(spec.Shallow)+len(spec.First)+len(spec.Wants)+len(spec.Haves)+1)*(spec.Repo.Format.HexSize()+12))
	for _, id := range spec.Shallow {
		b = append(id.AppendHex(append(b, "--shallow "...)), '\n')
	}
	for _, id := range spec.First {
		b = append(id.AppendHex(b), '\n')
	}
	for _, id := range spec.Wants {
		b = append(id.AppendHex(b), '\n')
	}
	b = append(b, "--not\n"...)
	for _, id := range spec.Haves {
		b = append(id.AppendHex(b), '\n')
	}
	return append(b, '\n')
}

// gitPack is one run of pack-objects.
type gitPack struct {
	child        *process.Process
	verification *pack.Verification // of the repository's packs; nil: none, or reported
	opened       time.Time
	cancel       context.CancelFunc
	abandoned    func() error // the error of Open's context
	pauses       pauses
	trailer      int    // length of the checksum that ends the pack
	temporary    string // scratch git directory of this run; "" for none
	progress     progressText
	info         Info
	ended        bool // Wait was called
}

// Size is unknown until the end.
func (p *gitPack) Size() int64 { return -1 }

func (p *gitPack) Info() Info {
	p.info.Result = Uncached
	p.info.Wait = p.child.Waited()
	return p.info
}

// Send frames git's output on its way to out.
func (p *gitPack) Send(ctx context.Context, out Output) error {
	defer context.AfterFunc(ctx, p.child.Kill)()
	f := newFramer(p.trailer)
	defer f.release()
	err := p.copy(f, out)
	if err != nil {
		p.child.Kill()
	}
	usage, exit := p.child.Wait()
	p.ended, p.info.Child = true, usage
	gone := cmp.Or(ctx.Err(), p.abandoned())
	switch {
	case gone != nil:
		return fault.Wrap(fault.KindOf(gone), "the pack was abandoned", gone)
	case errors.Is(err, errGit):
		if exit != nil && !fault.Is(exit, fault.Cancelled) { // git's own error is more specific, unless we cancelled it
			err = exit
		}
		return packError(err)
	case err != nil: // out's
		return err
	case exit != nil:
		return packError(exit)
	}
	if err := p.tell(out); err != nil {
		return err
	}
	if err := p.warn(ctx, out); err != nil {
		return err
	}
	return p.write(out, f.last()) // kept back until git had ended well
}

// warn waits for the verification and warns the client if the repository's packs are damaged.
func (p *gitPack) warn(ctx context.Context, out Output) error {
	if p.verification == nil {
		return nil
	}
	patience := time.NewTimer(min(verifyPatience, max(leastVerifyPatience, time.Since(p.opened))))
	defer patience.Stop()
	select {
	case <-p.verification.Done():
	case <-patience.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return p.warnIfKnown(out)
}

// warnIfKnown warns the client, once, that the repository's packs are damaged. The pack is still sent, because it may
// not contain the damaged object, and clients check every object.
func (p *gitPack) warnIfKnown(out Output) error {
	if p.verification == nil {
		return nil
	}
	select {
	case <-p.verification.Done():
	default:
		return nil
	}
	damage := p.verification.Damage()
	p.verification = nil
	if damage == nil {
		return nil
	}
	what := "a pack"
	if !damage.Object.IsZero() {
		what = "object " + damage.Object.String()
	}
	return out.Progress(fmt.Appendf(nil,
		"warning: %s of this repository is damaged on the server; tell its administrator\n", what))
}

// errGit marks an error of git's output.
var errGit = errors.New("git pack-objects gave no pack")

// copy sends git's output but for its last bytes. Its errors are out's, or errGit.
func (p *gitPack) copy(f *framer, out Output) error {
	stdout := p.child.Stdout()
	sent := time.Now()
	told, spoke, after := sent, sent, out.KeepAliveAfter()
	pauses := newGathering(stdout.Capacity())
	for {
		before, room := f.total, f.room()
		idle, err := p.fill(f, stdout)
		p.info.Objects = f.objects
		if err == io.EOF {
			if err = f.whole(); err != nil {
				p.letEnd()
			}
			return err
		} else if err != nil {
			return err
		}
		if err := p.warnIfKnown(out); err != nil {
			return err
		}
		now := time.Now()
		if idle || now.Sub(told) >= p.pauses.flush {
			told = now
			if err := p.tell(out); err != nil {
				return err
			}
		}
		if packets := f.take(idle || now.Sub(sent) >= p.pauses.flush); len(packets) > 0 {
			if err := p.write(out, packets); err != nil {
				return err
			}
			f.sent()
			sent = time.Now()
			spoke = sent
		} else if after > 0 && now.Sub(spoke) >= after { // progress does not count: a reader may drop it
			if err := out.KeepAlive(); err != nil {
				return err
			}
			spoke = now
		}
		if read := f.total - before; !idle && f.total > gatherAfter {
			time.Sleep(pauses.emptied(read, read < int64(room)))
		}
	}
}

// letEnd waits for a git that closed its output too early, because its exit status explains more. If we killed it, the
// status would be ours.
func (p *gitPack) letEnd() {
	patience := time.NewTimer(p.pauses.linger)
	defer patience.Stop()
	select {
	case <-p.child.Done():
	case <-patience.C:
	}
}

// fill reads once; idle means that nothing came for a while. An error is io.EOF or errGit.
func (p *gitPack) fill(f *framer, stdout *process.Output) (idle bool, err error) {
	pause, ended := p.pauses.flush, false
	select {
	case <-p.child.Done():
		pause, ended = p.pauses.linger, true
	default:
	}
	stdout.SetReadDeadline(time.Now().Add(pause))
	err = f.fill(stdout)
	switch {
	case err == nil || err == io.EOF || errors.Is(err, errGit):
		return false, err
	case errors.Is(err, os.ErrDeadlineExceeded) && !ended:
		return true, nil
	}
	return false, fmt.Errorf("%w: %w", errGit, err)
}

func (p *gitPack) tell(out Output) error {
	text := p.progress.take()
	if len(text) == 0 {
		return nil
	}
	return out.Progress(text)
}

func (p *gitPack) write(out Output, packets []byte) error {
	n, err := out.Write(packets)
	p.info.Bytes += int64(n)
	return err
}

func (p *gitPack) removeTemporary() {
	if p.temporary != "" {
		_ = os.RemoveAll(p.temporary) // swept at the next start if it fails
		p.temporary = ""
	}
}

// Close kills git if it still runs, and waits for its end.
func (p *gitPack) Close() error {
	p.cancel()
	if !p.ended {
		p.child.Kill()
		usage, _ := p.child.Wait()
		p.ended, p.info.Child = true, usage
	}
	p.removeTemporary()
	return nil
}
