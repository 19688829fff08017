package pack

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// withPack makes a repository at dir whose one commit is in a pack.
func withPack(t *testing.T, dir string) (*gittest.Repo, git.ObjectID) {
	t.Helper()
	r := gittest.InitAt(t, dir)
	id := r.Commit(dir)
	r.Git("update-ref", "refs/heads/main", id.String())
	r.Git("repack", "-adq")
	r.Git("prune-packed")
	return r, id
}

func glob(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v", pattern, found, err)
	}
	return found[0]
}

// TestLinksStayInsideRoot replaces the parts of an object directory and of an alternate's by symbolic links.
func TestLinksStayInsideRoot(t *testing.T) {
	t.Parallel()
	outer := t.TempDir()
	root := filepath.Join(outer, "root")
	_, away := withPack(t, filepath.Join(outer, "away"))
	_, inside := withPack(t, filepath.Join(root, "inside"))
	for name, test := range map[string]struct {
		replace func(objects, other string) (path, target string)
	}{
		"objects/pack": {func(o, other string) (string, string) { return o + "/pack", other + "/pack" }},
		"a pack": {func(o, other string) (string, string) {
			p := glob(t, other+"/pack/*.pack")
			return o + "/pack/" + filepath.Base(p), p
		}},
		"an index": {func(o, other string) (string, string) {
			p := glob(t, other+"/pack/*.idx")
			return o + "/pack/" + filepath.Base(p), p
		}},
		"a multi-pack-index": {func(o, other string) (string, string) {
			return o + "/pack/multi-pack-index", other +
				"/info/packs"
		}},
		"loose objects": {func(o, other string) (string, string) { return o + "/00", other + "/info" }},
		"objects/info":  {func(o, other string) (string, string) { return o + "/info", other + "/info" }},
		"objects/info/alternates": {func(o, other string) (string, string) {
			return o + "/info/alternates", other +
				"/info/alternates"
		}},
	} {
		for _, nested := range []bool{false, true} {
			dir := t.TempDir() + "/r" // as a name that is not taken
			dir = filepath.Join(root, filepath.Base(filepath.Dir(filepath.Dir(dir))), filepath.Base(filepath.Dir(dir)))
			r, own := withPack(t, dir)
			front, s := r, (*Store)(nil)
			if nested {
				front, _ = withPack(t, dir+"-front")
				setAlternates(t, front, r.Dir+"/objects\n")
			}
			for _, other := range []string{filepath.Join(root, "inside/objects"), filepath.Join(outer, "away/objects")} {
				write(t, other+"/info/alternates", nil)
				path, target := test.replace(r.Dir+"/objects", other)
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(target, path); err != nil {
					t.Fatal(err)
				}
				var err error
				if s == nil {
					s, err = Open(front.Dir+"/objects", Options{Root: root})
				} else {
					err = s.Refresh()
				}
				if denied := other != filepath.Join(root, "inside/objects"); denied != fault.Is(err, fault.Denied) || !denied &&
					err != nil {
					t.Errorf("%s, nested %v: a link to %s: %v", name, nested, other, err)
				}
				if err != nil {
					continue
				}
				if ok, err := s.Has(inside); name == "objects/pack" && (!ok || err != nil) {
					t.Errorf("%s: what is inside is not found: %v", name, err)
				}
				if ok, err := s.Has(own); name != "objects/pack" && (!ok || err != nil) {
					t.Errorf("%s: its own commit is not found: %v", name, err)
				}
			}
			if ok, _ := s.Has(away); ok {
				t.Errorf("%s, nested %v: an object of outside the root is found", name, nested)
			}
		}
	}
}

// TestHTTPAlternatesAreIgnored: they are for clients of the dumb protocol.
func TestHTTPAlternatesAreIgnored(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	r, _ := withBlob(t, filepath.Join(root, "r"))
	_, id := withBlob(t, filepath.Join(root, "other"))
	write(t, filepath.Join(r.Dir, "objects/info/http-alternates"), []byte(filepath.Join(root, "other/objects")+"\n"))
	s := openStore(t, r.Dir, git.SHA1)
	if ok, err := s.Has(id); ok || err != nil || s.HasAlternates() {
		t.Errorf("Has = %v, %v, HasAlternates() = %v", ok, err, s.HasAlternates())
	}
}

// TestLookups checks that many misses scan the directories once, and once more after each change.
func TestLookups(t *testing.T) {
	t.Parallel()
	r, _ := withPack(t, filepath.Join(t.TempDir(), "r"))
	fs := &coarse{tick: 1}
	fs.clock.Store(time.Now().Add(time.Hour).UnixNano())
	s, err := open(r.Dir+"/objects", Options{}, fs.stat, fs.now)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	misses := func(l *Lookups, n int) (stats int64) {
		t.Helper()
		before := fs.stats.Load()
		for i := range n {
			id := git.MustParseObjectID(r.GitIn(string(rune('a'+i)), "hash-object", "--stdin"))
			if ok, err := l.Has(id); ok || err != nil {
				t.Fatalf("%s: %v, %v", id, ok, err)
			}
		}
		return fs.stats.Load() - before - int64(n) // each object may be loose
	}
	l := s.Lookups()
	once := misses(&l, 1)
	if again := misses(&l, 10); once == 0 || again != 0 {
		t.Errorf("%d stats for one miss, %d for ten more", once, again)
	}
	// Packs that come before a row of look-ups, and in it: the second is new to a look that is made all the same.
	l = s.Lookups()
	for i := range 2 {
		id := r.Commit(string(rune('A' + i)))
		r.Git("update-ref", "refs/heads/main", id.String())
		r.Git("repack", "-dq")
		if ok, err := l.Has(id); !ok || err != nil {
			t.Errorf("the commit of pack %d is not found: %v", i, err)
		}
	}
	if n := misses(&l, 3); n == 0 {
		t.Error("no directory was read after a change, want a read")
	}
	// A single look-up looks each time.
	id := r.Commit("C")
	r.Git("update-ref", "refs/heads/main", id.String())
	r.Git("repack", "-dq")
	if ok, err := s.Has(id); !ok || err != nil {
		t.Errorf("a commit that came later: %v", err)
	}
}
