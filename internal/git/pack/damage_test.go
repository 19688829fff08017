package pack

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// readAll reads every object from a store that may be damaged. Each result must be correct or an error of the right
// kind. It returns the number of correct ones.
func readAll(t *testing.T, dir string, all []object) int {
	t.Helper()
	s, err := Open(filepath.Join(dir, "objects"), Options{Format: git.SHA1})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer s.Close()
	right := 0
	for _, o := range all {
		if _, err := s.Has(o.id); err != nil && !fault.Is(err, fault.Corrupt) {
			t.Fatalf("Has(%s): %v", o.id, err)
		}
		if _, _, err := s.Header(o.id); err != nil {
			expectKind(t, "Header", o.id, err)
		}
		typ, data, err := s.Read(o.id, 0)
		if err != nil {
			expectKind(t, "Read", o.id, err)
			continue
		}
		if typ != o.typ || !bytes.Equal(data, o.data) {
			t.Fatalf("Read(%s) gave other bytes than the object's, and no error", o.id)
		}
		right++
	}
	return right
}

func expectKind(t *testing.T, what string, id git.ObjectID, err error) {
	t.Helper()
	switch fault.KindOf(err) {
	case fault.Corrupt, fault.NotFound, fault.Invalid:
	default:
		t.Fatalf("%s(%s): kind %v: %v", what, id, fault.KindOf(err), err)
	}
}

// files lists the files under objects whose name matches a pattern.
func files(t *testing.T, dir, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "objects", pattern))
	if err != nil || len(found) == 0 {
		t.Fatalf("no file %s below %s: %v", pattern, dir, err)
	}
	for _, path := range found {
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return found
}

var damages = []struct {
	name, pattern string
	build         func(t testing.TB, r *gittest.Repo)
}{
	{"idx", "pack/*.idx", func(t testing.TB, r *gittest.Repo) { r.Git("repack", "-adfq") }},
	{"idx version 1", "pack/*.idx", func(t testing.TB,
		r *gittest.Repo) {
		r.Git("-c", "pack.indexVersion=1", "repack", "-adfq")
	}},
	{"pack", "pack/*.pack", func(t testing.TB, r *gittest.Repo) { r.Git("repack", "-adfq", "--depth=30") }},
	{"pack with ref deltas", "pack/*.pack", func(t testing.TB, r *gittest.Repo) {
		r.Git("-c", "repack.useDeltaBaseOffset=false", "repack", "-adfq", "--depth=30")
	}},
	{"midx", "pack/multi-pack-index", func(t testing.TB,
		r *gittest.Repo) {
		manyPacks(t, r, 4)
		r.Git("multi-pack-index", "write")
	}},
	{"loose", "[0-9a-f][0-9a-f]/*", unpackAll},
}

// TestDamage flips bytes and cuts files short at random.
func TestDamage(t *testing.T) {
	t.Parallel()
	const seed = 4
	for _, damage := range damages {
		t.Run(damage.name, func(t *testing.T) {
			t.Parallel()
			r := gittest.Random(t, seed, gittest.Shape{Commits: 15})
			damage.build(t, r)
			all := allObjects(t, r.Dir)
			paths := files(t, r.Dir, damage.pattern)
			rnd := rand.New(rand.NewPCG(seed, 1))
			for round := range 60 {
				path := paths[rnd.IntN(len(paths))]
				whole, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				bad := bytes.Clone(whole)
				switch {
				case round%4 == 0:
					bad = bad[:rnd.IntN(len(bad))]
				case round%4 == 1 && strings.HasPrefix(damage.name, "idx"):
					bad[rnd.IntN(min(len(bad), 1100))] ^= byte(1 + rnd.IntN(255))
				default:
					for range 1 + rnd.IntN(8) {
						bad[rnd.IntN(len(bad))] ^= byte(1 + rnd.IntN(255))
					}
				}
				write(t, path, bad)
				readAll(t, r.Dir, all)
				write(t, path, whole)
			}
			if right := readAll(t, r.Dir, all); right != len(all) {
				t.Fatalf("%d of %d objects are right after everything was put back", right, len(all))
			}
		})
	}
}

func write(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestOtherCopy damages one of two copies of everything.
func TestOtherCopy(t *testing.T) {
	t.Parallel()
	for _, second := range []string{"pack", "loose"} {
		t.Run(second, func(t *testing.T) {
			t.Parallel()
			r := gittest.Random(t, 9, gittest.Shape{Commits: 30})
			r.Git("repack", "-adfq", "--depth=30")
			all := allObjects(t, r.Dir)
			first := files(t, r.Dir, "pack/*.pack")[0]
			copied := gittest.Init(t)
			whole, _ := os.ReadFile(first)
			copied.GitIn(string(whole), "index-pack", "--stdin")
			if second == "loose" {
				unpackAll(t, copied)
			} else {
				manyPacks(t, copied, 3)
			}
			spoilt := bytes.Clone(whole)
			for i := 64; i+20 < len(spoilt); i += 97 {
				spoilt[i] ^= 0x5a
			}
			write(t, first, spoilt)
			if right := readAll(t, r.Dir, all); right > len(all)/2 {
				t.Fatalf("%d of %d objects can be read from a spoilt pack", right, len(all))
			}
			write(t, filepath.Join(r.Dir, "objects/info/alternates"), []byte(copied.Dir+"/objects\n"))
			if right := readAll(t, r.Dir, all); right != len(all) {
				t.Errorf("%d of %d objects are right, with a sound copy of all", right, len(all))
			}
		})
	}
}

// TestSoundBase damages the base of a delta. The base also exists as a loose object, the delta does not.
func TestSoundBase(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{"idx", "midx", "ref delta"} {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			r := gittest.Init(t)
			text := strings.Repeat("a line that is the same in both\n", 50)
			rnd := rand.New(rand.NewPCG(1, 1))
			for range 2000 {
				text += string(rune('a' + rnd.IntN(26)))
			}
			first := r.GitIn(text, "hash-object", "-w", "--stdin")
			second := r.GitIn(text[:3000], "hash-object", "-w", "--stdin")
			args := []string{"pack-objects", "-q", "--delta-base-offset", "objects/pack/pack"}
			if layout == "ref delta" {
				args = []string{"pack-objects", "-q", "objects/pack/pack"}
			}
			r.GitIn(first+"\n"+second+"\n", args...)
			r.Git("prune-packed")
			if layout == "midx" {
				r.Git("multi-pack-index", "write")
			}
			all := allObjects(t, r.Dir)
			s := openStore(t, r.Dir, git.SHA1)
			loc, _, _ := s.snap.Load().find(s, &all[0].id)
			baseLoc := location{loc.pack, 12} // the base comes first
			id, found := s.snap.Load().idAt(baseLoc)
			if !found {
				t.Fatal("idAt finds no object at the first offset, want one")
			}
			path := files(t, r.Dir, "pack/*.pack")[0]
			b, _ := os.ReadFile(path)
			b[100] ^= 0x11
			write(t, path, b)
			if right := readAll(t, r.Dir, all); right != 0 {
				t.Fatalf("%d objects are right, want none: the base is damaged", right)
			}
			writeLoose(t, r, id, all)
			if right := readAll(t, r.Dir, all); right != len(all) {
				t.Errorf("%d of %d objects are right, with a sound copy of the base", right, len(all))
			}
		})
	}
}

// writeLoose makes a loose copy of an object that git would not make because a pack has it.
func writeLoose(t *testing.T, r *gittest.Repo, id git.ObjectID, all []object) {
	t.Helper()
	other := gittest.Init(t)
	for _, o := range all {
		if o.id == id {
			other.GitIn(string(o.data), "hash-object", "-w", "--stdin", "-t", o.typ.String())
		}
	}
	from := loosePath(other.Dir+"/objects", &id)
	to := loosePath(r.Dir+"/objects", &id)
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, to, b)
}

// TestTruncatedWhileOpen cuts files short under an open store.
func TestTruncatedWhileOpen(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"pack/*.idx", "pack/*.pack", "pack/multi-pack-index"} {
		t.Run(pattern, func(t *testing.T) {
			t.Parallel()
			r := gittest.Random(t, 3, gittest.Shape{Commits: 300})
			if pattern == "pack/multi-pack-index" {
				manyPacks(t, r, 2)
				r.Git("multi-pack-index", "write")
			} else {
				r.Git("repack", "-adfq")
			}
			all := allObjects(t, r.Dir)
			s := openStore(t, r.Dir, git.SHA1)
			expect(t, s, all[:10])
			for _, path := range files(t, r.Dir, pattern) {
				if err := os.Truncate(path, 4096); err != nil {
					t.Fatal(err)
				}
			}
			failed := 0
			for _, o := range all {
				typ, data, err := s.Read(o.id, 0)
				if err != nil {
					expectKind(t, "Read", o.id, err)
					failed++
				} else if typ != o.typ || !bytes.Equal(data, o.data) {
					t.Fatalf("Read(%s) gave other bytes", o.id)
				}
			}
			if failed == 0 && pattern != "pack/multi-pack-index" { // the packs' own indexes may be found instead
				t.Error("read every object of a truncated file, want an error")
			}
		})
	}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	id := git.MustParseObjectID(r.GitIn(strings.Repeat("x", 5000), "hash-object", "-w", "--stdin"))
	for _, layout := range []string{"loose", "packed"} {
		s := openStore(t, r.Dir, git.SHA1)
		if _, _, err := s.Read(id, 4999); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: Read with a limit below the size: %v, want Invalid", layout, err)
		}
		if _, data, err := s.Read(id, 5000); err != nil || len(data) != 5000 {
			t.Errorf("%s: Read with a limit of the size: %d bytes, %v", layout, len(data), err)
		}
		r.GitIn(id.String()+"\n", "pack-objects", "-q", "objects/pack/pack")
		r.Git("prune-packed")
	}
	small, err := Open(filepath.Join(r.Dir, "objects"), Options{MaxObject: 100})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := small.Read(id, 0); !fault.Is(err, fault.Invalid) {
		t.Errorf("Read of more than MaxObject: %v, want Invalid", err)
	}
}

func TestMissingDirectory(t *testing.T) {
	t.Parallel()
	_, err := Open(filepath.Join(t.TempDir(), "none"), Options{})
	if !fault.Is(err, fault.NotFound) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Open of nothing: %v, want NotFound", err)
	}
}
