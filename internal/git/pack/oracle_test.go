package pack

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// object is git's description of an object.
type object struct {
	id   git.ObjectID
	typ  git.ObjectType
	data []byte
}

// allObjects reads every object of a repository with the real git.
func allObjects(t testing.TB, dir string) []object {
	t.Helper()
	cmd := exec.Command("git", "cat-file", "--batch", "--batch-all-objects", "--unordered")
	cmd.Dir, cmd.Env = dir, gittest.Env()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []object
	for len(out) > 0 {
		line, rest, _ := bytes.Cut(out, []byte{'\n'})
		f := strings.Fields(string(line))
		size, err := strconv.Atoi(f[2])
		if err != nil {
			t.Fatal(err)
		}
		typ, err := git.ParseObjectType(f[1])
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, object{git.MustParseObjectID(f[0]), typ, rest[:size]})
		out = rest[size+1:]
	}
	return all
}

func openStore(t testing.TB, dir string, format git.ObjectFormat) *Store {
	t.Helper()
	s, err := Open(filepath.Join(dir, "objects"), Options{Format: format})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// expect compares a store with git.
func expect(t testing.TB, s *Store, all []object) {
	t.Helper()
	for _, o := range all {
		if ok, err := s.Has(o.id); !ok || err != nil {
			t.Fatalf("Has(%s) = %v, %v", o.id, ok, err)
		}
		if typ, size, err := s.Header(o.id); typ != o.typ || size != int64(len(o.data)) || err != nil {
			t.Fatalf("Header(%s) = %v, %d, %v; want %v, %d", o.id, typ, size, err, o.typ, len(o.data))
		}
		typ, data, err := s.Read(o.id, 0)
		if typ != o.typ || !bytes.Equal(data, o.data) || err != nil {
			t.Fatalf("Read(%s) = %v, %d bytes, %v; want %v, %d bytes", o.id, typ, len(data), err, o.typ, len(o.data))
		}
		missing := o.id
		missing.Raw()[len(missing.Raw())-1] ^= 1
		if ok, err := s.Has(missing); ok || err != nil {
			t.Fatalf("Has of a missing object = %v, %v", ok, err)
		}
		if _, _, err := s.Read(missing, 0); !fault.Is(err, fault.NotFound) {
			t.Fatalf("Read of a missing object: %v, want NotFound", err)
		}
		if _, _, err := s.Header(missing); !fault.Is(err, fault.NotFound) {
			t.Fatalf("Header of a missing object: %v, want NotFound", err)
		}
	}
}

// manyPacks repacks a repository into about n packs.
func manyPacks(t testing.TB, r *gittest.Repo, n int) {
	t.Helper()
	var ids []string
	for _, o := range allObjects(t, r.Dir) {
		ids = append(ids, o.id.String())
	}
	old, err := filepath.Glob(filepath.Join(r.Dir, "objects/pack/*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		part := ids[len(ids)*i/n : len(ids)*(i+1)/n]
		r.GitIn(strings.Join(part, "\n")+"\n", "pack-objects", "-q", "--window=10", "objects/pack/pack")
	}
	for _, path := range old {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	r.Git("prune-packed")
}

// unpackAll turns all packs into loose objects.
func unpackAll(t testing.TB, r *gittest.Repo) {
	t.Helper()
	packs, err := filepath.Glob(filepath.Join(r.Dir, "objects/pack/*.pack"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range packs {
		pack, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, ext := range []string{".pack", ".idx", ".rev"} {
			os.Remove(strings.TrimSuffix(path, ".pack") + ext)
		}
		r.GitIn(string(pack), "unpack-objects", "-q")
	}
}

var layouts = []struct {
	name  string
	build func(t testing.TB, r *gittest.Repo)
}{
	{"one pack", func(t testing.TB, r *gittest.Repo) { r.Git("repack", "-adfq", "--depth=50", "--window=20") }},
	{"as imported", func(testing.TB, *gittest.Repo) {}},
	{"loose", unpackAll},
	{"many packs", func(t testing.TB, r *gittest.Repo) { manyPacks(t, r, 7) }},
	{"idx version 1", func(t testing.TB, r *gittest.Repo) { r.Git("-c", "pack.indexVersion=1", "repack", "-adfq") }},
	{"ref deltas", func(t testing.TB, r *gittest.Repo) {
		r.Git("-c", "repack.useDeltaBaseOffset=false", "repack", "-adfq", "--depth=50")
	}},
	{"64-bit offsets", func(t testing.TB, r *gittest.Repo) {
		r.Git("repack", "-adfq")
		packs, _ := filepath.Glob(filepath.Join(r.Dir, "objects/pack/*.pack"))
		r.Git("index-pack", "--index-version=2,0x40", packs[0])
	}},
	{"midx", func(t testing.TB, r *gittest.Repo) { manyPacks(t, r, 5); r.Git("multi-pack-index", "write") }},
	{"midx with 64-bit offsets", func(t testing.TB, r *gittest.Repo) {
		manyPacks(t, r, 2)
		r.Git("-c", "pack.indexVersion=2", "multi-pack-index", "write")
	}},
	{"midx and other packs", func(t testing.TB, r *gittest.Repo) {
		manyPacks(t, r, 3)
		r.Git("multi-pack-index", "write")
		for i := range 3 {
			blob := r.GitIn(fmt.Sprint("later ", i), "hash-object", "-w", "--stdin")
			r.GitIn(blob+"\n", "pack-objects", "-q", "objects/pack/pack")
			r.Git("prune-packed")
		}
		r.GitIn("loose", "hash-object", "-w", "--stdin")
	}},
	{"midx that names a pack that is gone", func(t testing.TB, r *gittest.Repo) {
		manyPacks(t, r, 3)
		blob := r.GitIn("goes away", "hash-object", "-w", "--stdin")
		name := r.GitIn(blob+"\n", "pack-objects", "-q", "objects/pack/pack")
		r.Git("prune-packed")
		r.Git("multi-pack-index", "write")
		for _, ext := range []string{".pack", ".idx", ".rev"} {
			os.Remove(filepath.Join(r.Dir, "objects/pack/pack-"+name+ext))
		}
	}},
	{"midx with bitmap", func(t testing.TB, r *gittest.Repo) {
		manyPacks(t, r, 3)
		r.Git("repack", "-q", "-d")
		r.Git("multi-pack-index", "write", "--bitmap")
	}},
}

func TestLayouts(t *testing.T) {
	t.Parallel()
	for i, layout := range layouts {
		for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
			t.Run(layout.name+"/"+format.String(), func(t *testing.T) {
				t.Parallel()
				r := gittest.Random(t, uint64(100+i), gittest.Shape{Merge: 0.2, Format: format.String()})
				layout.build(t, r)
				s := openStore(t, r.Dir, format)
				all := allObjects(t, r.Dir)
				if len(all) < 50 {
					t.Fatalf("only %d objects to compare", len(all))
				}
				expect(t, s, all)
				if faults := s.Damaged(); len(faults) > 0 {
					t.Errorf("Damaged() = %v, want nothing", faults)
				}
			})
		}
	}
}

func TestEmptyTreeExists(t *testing.T) {
	t.Parallel()
	for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
		r := gittest.Init(t, "--object-format="+format.String())
		s := openStore(t, r.Dir, format)
		id := git.MustParseObjectID(r.GitIn("", "hash-object", "-t", "tree", "--stdin"))
		expect(t, s, []object{{id, git.Tree, nil}})
	}
}
