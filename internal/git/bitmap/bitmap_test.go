package bitmap

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

var formats = []git.ObjectFormat{git.SHA1, git.SHA256}

// makers are the ways to make a bitmap. Each command is run by a git, and "-" runs packs.
var makers = map[string]struct {
	multi    bool
	commands []string
}{
	"pack":                  {false, []string{"repack -adb"}},
	"pack, no hash cache":   {false, []string{"-c pack.writeBitmapHashCache=false repack -adb"}},
	"pack, lookup table":    {false, []string{"-c pack.writeBitmapLookupTable=true repack -adb"}},
	"pack, index version 1": {false, []string{"-c pack.indexVersion=1 repack -adb"}},
	"pack, pseudo-merges": {false, []string{"-c bitmapPseudoMerge.all.pattern=refs/" +
		" -c bitmapPseudoMerge.all.threshold=now -c bitmapPseudoMerge.all.stableThreshold=now" +
		" -c pack.writeBitmapLookupTable=true repack -adb"}},
	"midx":               {true, []string{"-", "multi-pack-index write --bitmap"}},
	"midx, lookup table": {true, []string{"-", "-c pack.writeBitmapLookupTable=true multi-pack-index write --bitmap"}},
	"midx of one pack":   {true, []string{"repack -adb --write-midx"}},
	"midx and pack":      {true, []string{"repack -adb", "-", "multi-pack-index write --bitmap"}},
}

// gits are the programs that make bitmaps: git, and a newer one if there is one.
func gits() map[string]string {
	programs := map[string]string{"git": "git"}
	if newer := os.Getenv("PACKHORSE_TEST_NEWER_GIT"); newer != "" {
		programs["newer git"] = newer
	}
	return programs
}

// run runs a git in a repository and returns its standard output and standard error.
func run(t testing.TB, program, dir, stdin string, args ...string) (out, errs string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env, cmd.Stdin = dir, gittest.Env(), strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, &stderr)
	}
	return stdout.String(), stderr.String()
}

// addPacks packs the objects of about half of the commits, then all objects again.
func addPacks(t testing.TB, program, dir string) {
	t.Helper()
	commits, _ := run(t, program, dir, "", "rev-list", "--all", "--reverse", "--topo-order")
	half := commits[:strings.LastIndex(commits[:len(commits)/2+1], "\n")+1]
	run(t, program, dir, half, "pack-objects", "--revs", "-q", "objects/pack/pack")
	run(t, program, dir, "", "pack-objects", "--all", "-q", "objects/pack/pack")
}

func makeBitmap(t testing.TB, program, dir string, commands []string) {
	t.Helper()
	for _, command := range commands {
		if command == "-" {
			addPacks(t, program, dir)
		} else {
			run(t, program, dir, "", strings.Fields(command)...)
		}
	}
}

func packDir(r *gittest.Repo) string { return filepath.Join(r.Dir, "objects/pack") }

func TestSameAsGit(t *testing.T) {
	for by, program := range gits() {
		for name, maker := range makers {
			for seed, format := range formats {
				t.Run(by+"/"+name+"/"+format.String(), func(t *testing.T) {
					t.Parallel()
					r := gittest.Random(t, uint64(seed), gittest.Shape{Commits: 150, Merge: 0.2, Format: format.String()})
					makeBitmap(t, program, r.Dir, maker.commands)
					b, err := Open(t.Context(), packDir(r), format)
					if err != nil {
						t.Fatal(err)
					}
					if b.IsMulti() != maker.multi {
						t.Errorf("IsMulti() = %t, want %t", b.IsMulti(), maker.multi)
					}
					compare(t, program, r, b)
				})
			}
		}
	}
}

func rawID(hex string) []byte {
	id := git.MustParseObjectID(hex)
	return id.Raw()
}

// compare compares an open bitmap with the answers of git.
func compare(t *testing.T, program string, r *gittest.Repo, b *Bitmap) {
	t.Helper()
	if len(b.commits) == 0 {
		t.Fatal("no commit has a bitmap, want some")
	}
	_, out := run(t, program, r.Dir, "", "rev-list", "--test-bitmap", "HEAD")
	number := regexp.MustCompile(`Bitmap v1 test \((\d+) entries`).FindStringSubmatch(out)
	if number == nil || number[1] != strconv.Itoa(len(b.commits)) {
		t.Errorf("%d commits have a bitmap, want as in %s", len(b.commits), out)
	}
	ids := objectsOf(t, program, r, b)
	if len(ids) != b.Len() {
		t.Fatalf("Len() = %d, want the %d objects of the index", b.Len(), len(ids))
	}
	listed := func(set []uint64) []string {
		var list []string
		for i, id := range ids {
			if set[i/64]>>(i%64)&1 != 0 {
				list = append(list, id)
			}
		}
		slices.Sort(list)
		return list
	}
	set := make([]uint64, b.Words())
	for i, id := range ids {
		clear(set)
		set[i/64] = 1 << (i % 64)
		if raw := rawID(id); !b.Has(set, raw) || b.Has(make([]uint64, b.Words()), raw) {
			t.Fatalf("the bit of object %s is not bit %d", id, i)
		}
		if raw := rawID(ids[(i+1)%len(ids)]); b.Has(set, raw) && len(ids) > 1 {
			t.Fatalf("bit %d is also that of another object", i)
		}
	}
	if unknown := bytes.Repeat([]byte{0x5a}, len(rawID(ids[0]))); b.Has(set, unknown) {
		t.Error("an object that is not in the repository has a bit")
	}
	for commit := range b.commits {
		clear(set)
		if ok, err := b.Or(commit, set); err != nil || !ok {
			t.Fatalf("Or(%s) = %t, %v, want a bitmap", commit, ok, err)
		}
		if got, want := listed(set), reached(t, program, r, commit); !slices.Equal(got, want) {
			t.Fatalf("%s reaches %d objects, want %d", commit, len(got), len(want))
		}
	}
	compareTypes(t, program, r, b, listed)
	none := git.RawObjectID(make([]byte, r.ID("HEAD").Format().Size()))
	if ok, err := b.Or(none, set); ok || err != nil {
		t.Errorf("Or(%s) = %t, %v, want false, nil", none, ok, err)
	}
}

// reachedBy holds the sorted IDs of the objects that git reaches from a commit. Repositories of all makers have the
// same commits.
var reachedBy sync.Map

func reached(t *testing.T, program string, r *gittest.Repo, commit git.ObjectID) []string {
	t.Helper()
	if ids, ok := reachedBy.Load(commit); ok {
		return ids.([]string)
	}
	out, _ := run(t, program, r.Dir, "", "rev-list", "--objects", "--no-object-names", commit.String())
	ids := sortedLines(out)
	reachedBy.Store(commit, ids)
	return ids
}

func compareTypes(t *testing.T, program string, r *gittest.Repo, b *Bitmap, listed func([]uint64) []string) {
	t.Helper()
	all, _ := run(t, program, r.Dir, "", "cat-file", "--batch-all-objects", "--batch-check=%(objecttype) %(objectname)")
	for _, typ := range []git.ObjectType{git.Commit, git.Tree, git.Blob, git.Tag} {
		set := make([]uint64, b.Words())
		if err := b.OrType(typ, set); err != nil {
			t.Fatal(err)
		}
		var want []string
		for line := range strings.Lines(all) {
			if name, id, _ := strings.Cut(strings.TrimSpace(line), " "); name == typ.String() {
				want = append(want, id)
			}
		}
		if got := listed(set); !slices.Equal(got, want) {
			t.Errorf("OrType(%s) has %d objects, want %d", typ, len(got), len(want))
		}
	}
}

// objectsOf returns the IDs of the objects in the order of bits, from git's listings of the indexes.
func objectsOf(t *testing.T, program string, r *gittest.Repo, b *Bitmap) []string {
	t.Helper()
	type object struct {
		offset int64
		id     string
	}
	packs := make([][]object, len(b.Packs()))
	for i, pack := range b.Packs() {
		index, err := os.ReadFile(filepath.Join(packDir(r), pack+".idx"))
		if err != nil {
			t.Fatal(err)
		}
		out, _ := run(t, program, r.Dir, string(index), "show-index", "--object-format="+r.ID("HEAD").Format().String())
		for line := range strings.Lines(out) {
			var o object
			if _, err := fmt.Sscan(line, &o.offset, &o.id); err != nil {
				t.Fatal(err)
			}
			packs[i] = append(packs[i], o)
		}
		slices.SortFunc(packs[i], func(a, b object) int { return cmp.Compare(a.offset, b.offset) })
	}
	var ids []string
	if !b.IsMulti() {
		for _, o := range packs[0] {
			ids = append(ids, o.id)
		}
		return ids
	}
	set := make([]uint64, b.Words())
	for i := range b.Len() {
		set[i/64] |= 1 << (i % 64)
	}
	err := b.Objects(set, func(_, pack int, offset int64) error {
		i, ok := slices.BinarySearchFunc(packs[pack], offset,
			func(o object, at int64) int { return cmp.Compare(o.offset, at) })
		if !ok {
			return fmt.Errorf("pack %s has no object at %d", b.Packs()[pack], offset)
		}
		ids = append(ids, packs[pack][i].id)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func sortedLines(s string) []string {
	lines := strings.Fields(s)
	slices.Sort(lines)
	return lines
}

// resum corrects the checksum at the end of a file.
func resum(b []byte, format git.ObjectFormat) {
	h := format.New()
	end := len(b) - format.Size()
	h.Write(b[:end])
	h.Sum(b[:end])
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	os.Remove(path)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestNoBitmap(t *testing.T) {
	r := gittest.Init(t)
	check := func(what string) {
		t.Helper()
		if _, err := Open(t.Context(), packDir(r), git.SHA1); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Open of %s: %v, want fs.ErrNotExist", what, err)
		}
	}
	check("an empty repository")
	r.Git("update-ref", "HEAD", r.Commit("one").String())
	r.Git("repack", "-ad", "--no-write-bitmap-index")
	check("a pack without a bitmap")
	r.Git("multi-pack-index", "write")
	check("a multi-pack-index without a bitmap")
	if _, err := openPack(t.Context(), filepath.Join(packDir(r), "pack-x"), git.SHA1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("openPack of no pack: %v, want fs.ErrNotExist", err)
	}
	r.Git("repack", "-adb")
	b, err := Open(t.Context(), packDir(r), git.SHA1)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := b.commits[r.ID("HEAD")]; b.Len() != 3 || len(b.commits) != 1 || !ok {
		t.Errorf("one commit: %d objects, bitmaps of %v, want 3 and that of HEAD", b.Len(), b.commits)
	}
}

// Of several packs with a bitmap the newest is used. A bitmap has to belong to its pack.
func TestSeveralBitmaps(t *testing.T) {
	r := gittest.Random(t, 1, gittest.Shape{Commits: 10})
	r.Git("repack", "-adb")
	used := func() string {
		t.Helper()
		b, err := Open(t.Context(), packDir(r), git.SHA1)
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(packDir(r), b.Packs()[0])
	}
	first := used()
	write(t, first+".keep", nil)
	r.Git("update-ref", "refs/heads/new", r.Commit("new", r.ID("HEAD")).String())
	r.Git("repack", "-adb", "--pack-kept-objects")
	for _, age := range []time.Duration{time.Hour, -time.Hour} {
		at := time.Now().Add(-age)
		if err := os.Chtimes(first+".pack", at, at); err != nil {
			t.Fatal(err)
		}
		if got := used(); (got == first) != (age < 0) {
			t.Errorf("Open with the first pack %v old uses %s, want the newest pack", age, got)
		}
	}
	bits, err := os.ReadFile(first + ".bitmap")
	if err != nil {
		t.Fatal(err)
	}
	os.Remove(first + ".pack")
	second := used()
	if second == first {
		t.Errorf("Open uses %s, which has no pack", first)
	}
	write(t, second+".bitmap", bits)
	if _, err := openPack(t.Context(), second, git.SHA1); !fault.Is(err, fault.Corrupt) ||
		!strings.Contains(err.Error(), second) || strings.Contains(fault.Message(err), second) {
		t.Errorf("openPack with the bitmap of another pack: %v, want Corrupt with the path in the cause", err)
	}
}

func TestConcurrentUse(t *testing.T) {
	r := gittest.Random(t, 2, gittest.Shape{})
	r.Git("repack", "-adb")
	b, err := Open(t.Context(), packDir(r), git.SHA1)
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[git.ObjectID][]uint64)
	for commit := range b.commits {
		want[commit] = make([]uint64, b.Words())
		if _, err := b.Or(commit, want[commit]); err != nil {
			t.Fatal(err)
		}
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for commit, bits := range want {
				set := make([]uint64, b.Words())
				if _, err := b.Or(commit, set); err != nil || !slices.Equal(set, bits) {
					t.Errorf("Or(%s) while others read = %x, %v, want %x", commit, set, err, bits)
				}
			}
		})
	}
	all.Wait()
}
