package sourcetest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// part is a part of a repository's files, in which a bit flips.
type part struct {
	name    string
	pattern string // of the file, below objects/pack
	// place returns the byte and the bit.
	place func(rnd *rand.Rand, f *damagedFile) (at int, bit uint)
}

// damagedFile is a file of a pack, and the entries of the pack.
type damagedFile struct {
	data   []byte
	format git.ObjectFormat
	plain  []span // entries that are not deltas
	deltas []span
}

// span is the place of an entry in a pack.
type span struct{ from, to int }

func (f *damagedFile) count() int { return len(f.plain) + len(f.deltas) }

func anywhere(rnd *rand.Rand, f *damagedFile) (int, uint) {
	return rnd.IntN(len(f.data)), uint(rnd.IntN(8))
}

func between(rnd *rand.Rand, from, to int) (int, uint) {
	return from + rnd.IntN(to-from), uint(rnd.IntN(8))
}

func pick(rnd *rand.Rand, list []span) span { return list[rnd.IntN(len(list))] }

// idxTable returns the place of a table in an index of version 2 (gitformat-pack(5)): 0 has the IDs, 1 the checksums,
// and 2 the offsets.
func idxTable(n int) func(rnd *rand.Rand, f *damagedFile) (int, uint) {
	return func(rnd *rand.Rand, f *damagedFile) (int, uint) {
		at := []int{8 + 4*256}
		for _, width := range []int{f.format.Size(), 4, 4} {
			at = append(at, at[len(at)-1]+width*f.count())
		}
		return between(rnd, at[n], at[n+1])
	}
}

var parts = []part{
	{"header of the pack", "*.pack", func(rnd *rand.Rand, _ *damagedFile) (int,
		uint) {
		return between(rnd, 0, packHeader)
	}},
	{"type of an entry", "*.pack", func(rnd *rand.Rand, f *damagedFile) (int, uint) {
		return pick(rnd, append(f.plain, f.deltas...)).from, uint(4 + rnd.IntN(3))
	}},
	{"size of an entry", "*.pack", func(rnd *rand.Rand, f *damagedFile) (int, uint) {
		return pick(rnd, append(f.plain, f.deltas...)).from, uint(rnd.IntN(4))
	}},
	{"whole object", "*.pack", func(rnd *rand.Rand, f *damagedFile) (int, uint) {
		s := pick(rnd, f.plain)
		return between(rnd, s.from+1, s.to)
	}},
	{"offset of a base", "*.pack", func(rnd *rand.Rand, f *damagedFile) (int, uint) {
		at := pick(rnd, f.deltas).from
		for ; f.data[at]&0x80 != 0; at++ {
		}
		return at + 1, uint(rnd.IntN(8))
	}},
	{"delta", "*.pack", func(rnd *rand.Rand, f *damagedFile) (int, uint) {
		s := pick(rnd, f.deltas)
		return between(rnd, s.from+4, s.to)
	}},
	{"checksum of the pack", "*.pack", func(rnd *rand.Rand, f *damagedFile) (int, uint) {
		return between(rnd, len(f.data)-f.format.Size(), len(f.data))
	}},
	{"header of the index", "*.idx", func(rnd *rand.Rand, _ *damagedFile) (int, uint) { return between(rnd, 0, 8) }},
	{"fan-out of the index", "*.idx", func(rnd *rand.Rand, _ *damagedFile) (int,
		uint) {
		return between(rnd, 8, 8+4*256)
	}},
	{"IDs of the index", "*.idx", idxTable(0)},
	{"CRCs of the index", "*.idx", idxTable(1)},
	{"offsets of the index", "*.idx", idxTable(2)},
	{"reverse index", "*.rev", anywhere},
	{"bitmap", "*.bitmap", anywhere},
	{"multi-pack-index", "multi-pack-index", anywhere},
	{"bitmap of the multi-pack-index", "multi-pack-index-*.bitmap", anywhere},
}

// testDamage flips bits. The Source returns an error, or a pack that is right, because it used another copy of the
// object or does not need it.
func testDamage(t *testing.T, newSource Make) {
	flips := 2
	if !testing.Short() {
		flips = 40
	}
	for i, part := range parts {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			seed := uint64(i + 1)
			rnd := rand.New(rand.NewPCG(seed, 3))
			r := gittest.Random(t, seed, gittest.Shape{Commits: 15, Format: []string{"sha1", "sha256"}[i%2]})
			r.Git("-c", "pack.writeReverseIndex=true", "repack", "-qadfb")
			if strings.HasPrefix(part.pattern, "multi") {
				addCommit(r, "second pack")
				r.Git("repack", "-qd")
				r.Git("multi-pack-index", "write", "--bitmap")
			}
			s := newSource(t, "")
			refused := 0
			for n := range flips {
				copied := copyOf(t, r)
				place := damage(t, copied, part, rnd)
				for _, shape := range plainShapes(r) {
					shape.spec.Repo = Repository(copied)
					refused += fetchDamaged(t, s, r, shape.spec)
					if t.Failed() {
						t.Fatalf("seed %d, flip %d, %s: %s", seed, n, place, shape.name)
					}
				}
			}
			t.Logf("%d errors in %d packs", refused, flips*len(plainShapes(r)))
		})
	}
}

func copyOf(t testing.TB, r *gittest.Repo) *gittest.Repo {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "copy.git")
	if err := os.CopyFS(dir, os.DirFS(r.Dir)); err != nil {
		t.Fatal(err)
	}
	return gittest.At(t, dir)
}

// damage flips one bit of a part, and returns its place.
func damage(t testing.TB, r *gittest.Repo, p part, rnd *rand.Rand) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(r.Dir, "objects/pack", p.pattern))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no file %s: %v", p.pattern, err)
	}
	data, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	f := &damagedFile{data: data, format: r.Format()}
	if ext := filepath.Ext(paths[0]); ext == ".pack" || ext == ".idx" {
		f.entries(t, r, strings.TrimSuffix(paths[0], ext)+".idx")
	}
	at, bit := p.place(rnd, f)
	data[at] ^= 1 << bit
	if err := os.Chmod(paths[0], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(paths[0], data, 0o600); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s, byte %d, bit %d", filepath.Base(paths[0]), at, bit)
}

// verifiedEntry is an object in the output of git verify-pack: ID, type, size, size in the pack, offset; depth and base
// of a delta follow.
var verifiedEntry = regexp.MustCompile(`^[0-9a-f]{40,64} +\w+ +\d+ (\d+) (\d+)( .*)?$`)

func (f *damagedFile) entries(t testing.TB, r *gittest.Repo, idx string) {
	t.Helper()
	for line := range strings.Lines(r.Git("verify-pack", "-v", idx)) {
		m := verifiedEntry.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		size, _ := strconv.Atoi(m[1])
		at, _ := strconv.Atoi(m[2])
		if m[3] != "" {
			f.deltas = append(f.deltas, span{at, at + size})
		} else {
			f.plain = append(f.plain, span{at, at + size})
		}
	}
}

// named matches what an error of a damaged repository has to name: a file of a pack, or an object.
var named = regexp.MustCompile(`pack-[0-9a-f]{40}|multi-pack-index|[0-9a-f]{40}`)

// fetchDamaged makes a pack from a damaged repository, of which sound is a sound copy. It returns 1 if that failed.
func fetchDamaged(t testing.TB, s packsource.Source, sound *gittest.Repo, spec *packsource.Spec) int {
	t.Helper()
	p, err := s.Open(t.Context(), spec)
	if err != nil {
		return 1
	}
	defer p.Close()
	var out Output
	err = p.Send(t.Context(), &out)
	pack := out.Pack(t)
	source := p.Info().Made.Source
	isNative := source == packsource.SourceNative
	switch {
	case err != nil && whole(spec.Repo.Format, pack) == nil:
		t.Errorf("a whole pack was sent before the error %v", err)
	case err != nil && isNative && !named.MatchString(err.Error()):
		t.Errorf("the error names no pack and no object: %v", err)
	case err != nil:
		return 1
	case isNative: // git does not verify what it copies; the client finds most of that, but not that a filter was wrong
		check(t, sound, spec, pack, source)
	case spec.Filter == "" && newClient(t, sound, spec).accept(pack) == nil:
		check(t, sound, spec, pack, source)
	}
	return 0
}
