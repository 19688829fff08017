package native_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/packsource/native"
	"github.com/packhorse-git/packhorse/internal/node/packsource/sourcetest"
)

// addTip makes the tip pack of a commit, and returns its path without an extension.
func addTip(t *testing.T, r *gittest.Repo, rev string) string {
	t.Helper()
	dir := filepath.Join(r.Dir, r.Git("rev-parse", "--git-path", "objects"), "tip")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	tip := r.ID(rev).String()
	name := r.GitIn("--shallow "+tip+"\n"+tip+"\n", "pack-objects", "-q", "--revs", "--shallow", "--delta-base-offset",
		filepath.Join(dir, "pack"))
	path := filepath.Join(dir, "pack-"+name)
	for _, ext := range []string{".pack", ".idx"} {
		if err := os.Chmod(path+ext, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// tipRepository returns a repository with a tip pack, and Specs of shallow clones.
func tipRepository(t *testing.T, seed uint64) (r *gittest.Repo, path string, specs []*packsource.Spec) {
	t.Helper()
	r = gittest.Random(t, seed, gittest.Shape{})
	path = addTip(t, r, "main")
	r.Push(rand.New(rand.NewPCG(seed, 1)), "main", "main", 3)
	main := []git.ObjectID{r.ID("main")}
	for _, boundary := range []string{"main", "main~1", "main~3"} {
		specs = append(specs, &packsource.Spec{Repo: sourcetest.Repository(r), Wants: main,
			Shallow: []git.ObjectID{r.ID(boundary)}, Offset: true})
	}
	return r, path, specs
}

// TestDamagedTip damages tip packs. Clones are made of the rest of the repository.
func TestDamagedTip(t *testing.T) {
	t.Parallel()
	read := func(path string) []byte {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	flip := func(ext string) func(path string) error {
		return func(path string) error {
			b := read(path + ext)
			b[rnd.IntN(len(b))] ^= 1 << rnd.IntN(8)
			return os.WriteFile(path+ext, b, 0o600)
		}
	}
	tests := map[string]struct {
		damage func(path string) error
		logged string
	}{
		"none":               {func(string) error { return nil }, ""},
		"a truncated pack":   {func(path string) error { return os.Truncate(path+".pack", 100) }, "cannot read the tip pack"},
		"an empty pack":      {func(path string) error { return os.Truncate(path+".pack", 0) }, "cannot read the tip pack"},
		"a truncated index":  {func(path string) error { return os.Truncate(path+".idx", 1100) }, "cannot read the tip pack"},
		"no pack":            {func(path string) error { return os.Remove(path + ".pack") }, ""},
		"no index":           {func(path string) error { return os.Remove(path + ".idx") }, ""},
		"a bit of the index": {flip(".idx"), "cannot read the tip pack"},
		"a bit of the pack":  {flip(".pack"), "?"},
		"a directory": {func(path string) error {
			return errors.Join(os.Remove(path+".pack"), os.Mkdir(path+".pack", 0o700))
		}, "cannot read the tip pack"},
		"another pack": {func(path string) error {
			other, _, _ := tipRepository(t, 9)
			return os.WriteFile(path+".pack", read(addTip(t, other, "main")+".pack"), 0o600)
		}, "cannot read the tip pack"},
		"the index of another pack": {func(path string) error {
			other, _, _ := tipRepository(t, 9)
			return os.WriteFile(path+".idx", read(addTip(t, other, "main")+".idx"), 0o600)
		}, "cannot read the tip pack"},
		"a link to a pack": {func(path string) error {
			if err := os.Rename(path+".pack", path+".moved"); err != nil {
				return err
			}
			return os.Symlink(path+".moved", path+".pack")
		}, "cannot read the tip pack"},
		"a link to an index": {func(path string) error {
			if err := os.Rename(path+".idx", path+".moved"); err != nil {
				return err
			}
			return os.Symlink(path+".moved", path+".idx")
		}, ""},
		"a link to the directory": {func(path string) error {
			dir := filepath.Dir(path)
			if err := os.Rename(dir, dir+".moved"); err != nil {
				return err
			}
			return os.Symlink(dir+".moved", dir)
		}, ""},
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		test, seeds := tests[name], uint64(1)
		if !testing.Short() || strings.HasPrefix(name, "a bit") {
			seeds = 4
		}
		for seed := range seeds {
			r, path, specs := tipRepository(t, seed)
			if err := test.damage(path); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			source := native.New(native.Options{Git: sourcetest.FromGit(t, "", process.Limits{Slots: 2, Queue: 100}),
				Always: true, Threads: 2, Log: slog.New(slog.NewTextHandler(&log, nil))})
			for _, spec := range specs {
				info := sourcetest.FetchAndCheck(t, source, r, spec)
				if info.Made.ReusedDisk.Objects == 0 && name == "none" {
					t.Errorf("%+v, want objects that are copied from the tip pack", info.Made)
				}
			}
			if n := strings.Count(log.String(), "level=WARN"); test.logged != "?" &&
				(!strings.Contains(log.String(), test.logged) || n > 1 || n == 0 && test.logged != "") {
				t.Errorf("%s, seed %d: the log has %q, want %q once", name, seed, log.String(), test.logged)
			}
		}
	}
}

// TestTipOfAnyCommit checks shallow clones beside the tip pack of another commit: one that the clone does not reach, or
// that the repository has no more.
func TestTipOfAnyCommit(t *testing.T) {
	t.Parallel()
	seeds := uint64(4)
	if !testing.Short() {
		seeds = 40
	}
	for seed := range seeds {
		rnd := rand.New(rand.NewPCG(seed, 2))
		r := gittest.Random(t, seed, gittest.Shape{})
		r.Push(rnd, "main", "main", 5)
		commits := strings.Fields(r.Git("rev-list", "--all"))
		addTip(t, r, commits[rnd.IntN(len(commits))])
		if seed%2 == 1 {
			r.Git("update-ref", "refs/heads/main", "main~3")
			r.Git("reflog", "expire", "--expire=now", "--all")
			r.Git("gc", "-q", "--prune=now")
		}
		commits = strings.Fields(r.Git("rev-list", "--all"))
		source := newSource(t, true)
		for range 6 {
			want, boundary := commits[rnd.IntN(len(commits))], commits[rnd.IntN(len(commits))]
			if rnd.IntN(3) == 0 {
				boundary = want
			}
			spec := &packsource.Spec{Repo: sourcetest.Repository(r), Wants: []git.ObjectID{r.ID(want)},
				Shallow: []git.ObjectID{r.ID(boundary)}, Offset: rnd.IntN(4) > 0}
			if sourcetest.FetchAndCheck(t, source, r, spec); t.Failed() {
				t.Fatalf("seed %d: %s with the boundary %s", seed, want, boundary)
			}
		}
	}
}

// Only clones with a depth use the tip pack: not the whole history, filters of it, and fetches.
func TestOnlyShallowClonesUseTip(t *testing.T) {
	t.Parallel()
	r, path, specs := tipRepository(t, 1)
	source := newSource(t, true)
	full := sourcetest.Full(r)
	blobless := *full
	blobless.Filter = "blob:none"
	fetch := packsource.Spec{Repo: full.Repo, Wants: specs[0].Wants, Haves: []git.ObjectID{r.ID("main~2")},
		Shallow: []git.ObjectID{r.ID("main~2")}, Offset: true, Thin: true}
	var with, without []string
	for _, list := range []*[]string{&with, &without} {
		for _, spec := range []*packsource.Spec{full, &blobless, &fetch, specs[0]} {
			*list = append(*list, fmt.Sprintf("%x", sourcetest.Fetch(t, source, spec)))
		}
		if err := os.RemoveAll(filepath.Dir(path)); err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range []string{"whole history", "blob:none", "fetch", "depth 1"} {
		if (with[i] != without[i]) != (name == "depth 1") {
			t.Errorf("the pack of %s depends on the tip pack: %t", name, with[i] != without[i])
		}
	}
}
