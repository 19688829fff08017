package pack

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// coarse is a file system whose clock is controlled by the test.
type coarse struct {
	clock atomic.Int64 // nanoseconds
	tick  time.Duration
	stats atomic.Int64
}

// stat gives files that were changed within one tick the same times.
func (c *coarse) stat(path string) (disk.ID, error) {
	c.stats.Add(1)
	id, err := disk.Stat(path)
	if id != (disk.ID{}) {
		id.Mtime, id.Ctime = id.Mtime/int64(c.tick)*int64(c.tick), id.Ctime/int64(c.tick)*int64(c.tick)
	}
	return id, err
}

func (c *coarse) now() time.Time { return time.Unix(0, c.clock.Load()) }

// TestCoarseClock adds packs in the tick of the last scan: the directory's identity does not change.
func TestCoarseClock(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	fs := &coarse{tick: time.Hour}
	fs.clock.Store(time.Now().UnixNano() / int64(time.Hour) * int64(time.Hour))
	var ids []git.ObjectID
	for i := range 3 {
		ids = append(ids, r.Commit(strings.Repeat("x", i)))
		r.Git("update-ref", "refs/heads/x", ids[i].String())
	}
	addPack := func(i int) {
		r.GitIn(ids[i].String()+"\n", "pack-objects", "-q", "objects/pack/pack")
	}
	addPack(0)
	dirs := func() { // only packs matter here
		loose, _ := filepath.Glob(filepath.Join(r.Dir, "objects/[0-9a-f][0-9a-f]"))
		for _, d := range loose {
			if err := os.RemoveAll(d); err != nil {
				t.Fatal(err)
			}
		}
	}
	addLater := []func(){}
	for i := 1; i < 3; i++ {
		tmp := gittest.Init(t)
		for path := range eachFile(t, filepath.Join(r.Dir, "objects")) {
			b, _ := os.ReadFile(filepath.Join(r.Dir, "objects", path))
			os.MkdirAll(filepath.Dir(filepath.Join(tmp.Dir, "objects", path)), 0o700)
			os.WriteFile(filepath.Join(tmp.Dir, "objects", path), b, 0o600)
		}
		addLater = append(addLater, func() {
			name := tmp.GitIn(ids[i].String()+"\n", "pack-objects", "-q", "objects/pack/pack")
			for _, ext := range []string{".pack", ".idx"} {
				b, err := os.ReadFile(filepath.Join(tmp.Dir, "objects/pack/pack-"+name+ext))
				if err != nil {
					t.Fatal(err)
				}
				write(t, filepath.Join(r.Dir, "objects/pack/pack-"+name+ext), b)
			}
		})
	}
	dirs()
	s, err := open(filepath.Join(r.Dir, "objects"), Options{}, fs.stat, fs.now)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range ids {
		if i > 0 {
			if ok, err := s.Has(ids[i]); ok || err != nil {
				t.Fatalf("Has of commit %d before its pack is there: %v, %v", i, ok, err)
			}
			addLater[i-1]()
		}
		if ok, err := s.Has(ids[i]); !ok || err != nil {
			t.Fatalf("Has of commit %d after its pack is there: %v, %v", i, ok, err)
		}
	}
}

func eachFile(t *testing.T, dir string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			rel, _ := filepath.Rel(dir, path)
			found[rel] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestMissesDoNotRescan counts the directory reads of misses after the timestamp of the directory is reliable.
func TestMissesDoNotRescan(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 2, gittest.Shape{})
	manyPacks(t, r, 5)
	fs := &coarse{tick: time.Nanosecond}
	fs.clock.Store(time.Now().Add(time.Hour).UnixNano())
	s, err := open(filepath.Join(r.Dir, "objects"), Options{}, fs.stat, fs.now)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	scans := s.scans.Load()
	fs.stats.Store(0)
	const misses = 100
	for i := range misses {
		id := git.RawObjectID(append(make([]byte, 19), byte(i)))
		if ok, err := s.Has(id); ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if n := s.scans.Load(); n != scans {
		t.Errorf("%d misses caused %d scans, want none", misses, n-scans)
	}
	if n := fs.stats.Load(); n > 3*misses {
		t.Errorf("%d misses cost %d stats, want at most 3 each", misses, n)
	}
	fs.stats.Store(0)
	if err := s.Refresh(); err != nil || fs.stats.Load() != 2 {
		t.Errorf("Refresh of what has not changed cost %d stats, %v; want 2", fs.stats.Load(), err)
	}
	r.Git("repack", "-adq")
	if err := s.Refresh(); err != nil || s.scans.Load() == scans {
		t.Errorf("Refresh after a repack: %d scans, %v; want one", s.scans.Load()-scans, err)
	}
	expect(t, s, allObjects(t, r.Dir))
}

// TestDescriptorsAreBounded reads through more packs than may stay open.
func TestDescriptorsAreBounded(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 5, gittest.Shape{Commits: 60})
	r.Git("gc", "-q", "--prune=now") // what no ref reaches goes away below
	manyPacks(t, r, maxOpenPacks+20)
	all := allObjects(t, r.Dir)
	s := openStore(t, r.Dir, git.SHA1)
	expect(t, s, all)
	if n := s.files.recent.Len(); n != maxOpenPacks {
		t.Errorf("%d packs are open, want %d", n, maxOpenPacks)
	}
	r.Git("repack", "-adq")
	if err := s.Refresh(); err != nil {
		t.Fatal(err)
	}
	if n := s.files.recent.Len(); n != 0 {
		t.Errorf("%d packs are open that are gone, want 0", n)
	}
	expect(t, s, all)
	if err := s.Close(); err != nil || s.files.recent.Len() != 0 {
		t.Errorf("after Close %d packs are open, %v", s.files.recent.Len(), err)
	}
	expect(t, s, all)
}
