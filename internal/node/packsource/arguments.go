package packsource

import (
	"slices"
	"strconv"

	"github.com/packhorse-git/packhorse/internal/git"
)

// gitBigFile is git's default for core.bigFileThreshold. Git never holds files of this size in memory as a whole.
const gitBigFile = 512 << 20

// gitDeltaCache is git's default for pack.deltaCacheSize.
const gitDeltaCache = 256 << 20

// Settings of pack-objects; docs/decisions/0001-pack-objects-settings.md has the measurements behind them.
const (
	deltaWindow        = 5 // pack.window
	shallowWindow      = 1 // of packs with a shallow boundary and without haves: they have few versions of many files
	snapshotWindow     = 0 // the same if every want is itself on the boundary (depth 1): one version of each file
	shallowCompression = 3 // zlib level of packs with a shallow boundary, which reuse fewer stored deltas
	windowMemory       = 256 << 20
)

// windowMemory returns the limit for the delta window of one thread. share is the memory of the process; all its
// windows together get at most a quarter of that. 0 means an unknown share.
func (o *GitOptions) windowMemory(share int64) int64 {
	if share == 0 {
		return windowMemory
	}
	return min(windowMemory, max(share/4/int64(max(o.Threads, 1)), 1))
}

// arguments returns the command line. The filter is its only part that comes from a client, and is canonical.
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
	set("pack.windowMemory", g.options.windowMemory(share))
	if m := g.options.Memory; m > 0 { // the remaining memory is for the lists of objects
		set("pack.deltaCacheSize", m/8)
		set("core.deltaBaseCacheLimit", m/8)
		set("core.bigFileThreshold", min(m/8, gitBigFile))
	}
	set("pack.window", windowOf(spec))
	if len(spec.Shallow) > 0 {
		set("pack.compression", shallowCompression)
		args = append(args, "--shallow-file", "") // git takes its value only as a separate argument
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

// windowOf returns the delta window for a pack.
func windowOf(spec *Spec) int64 {
	if len(spec.Shallow) == 0 || len(spec.Haves) > 0 {
		return deltaWindow
	}
	for _, want := range spec.Wants {
		if _, shallow := slices.BinarySearchFunc(spec.Shallow, want, git.ObjectID.Compare); !shallow {
			return shallowWindow
		}
	}
	return snapshotWindow
}

// revisions returns the input of pack-objects: grafts, objects to include, and objects to omit.
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
