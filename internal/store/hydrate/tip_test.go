package hydrate

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// addTip adds a tip pack to a pack of the repository r0.
func (b *fakeBucket) addTip(p *replog.Pack, content string) {
	for _, ext := range []string{replog.TipPack, replog.TipIdx} {
		text := []byte(content + ext)
		p.Extra = append(p.Extra, replog.File{Ext: ext, Bytes: int64(len(text)), SHA256: b.put("repos/r0/"+p.Key+ext, text)})
	}
}

// The tip pack of a record replaces the one before, counts as a part of its pack, and goes with it.
func TestTipPack(t *testing.T) {
	t.Parallel()
	b, root := newFakeBucket(), t.TempDir()
	c := open(t, Options{Bucket: b, Root: root})
	rs, recs := repositories(c, b, 1)
	r, first := rs[0], recs[0]
	b.addTip(&first.Packs[0], "first")
	apply(t, r, first)
	use(t, r, first)()
	checkFiles(t, b, r, first)
	next := first.Next(replog.KindCompact, "test", time.Now())
	old := first.Packs[0]
	next.Packs[0].Extra = nil
	b.addPack(next, "r0", "later", 100)
	p := &next.Packs[len(next.Packs)-1]
	b.addTip(p, "second")
	apply(t, r, next)
	use(t, r, next)()
	checkFiles(t, b, r, next)
	tips := func(want ...string) {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(r.Dir(), tipDir, "*"))
		if err != nil || len(files) != len(want) {
			t.Errorf("the files of the tip pack are %v, %v, want %v", files, err, want)
		}
	}
	tips(r.path(p, replog.File{Ext: replog.TipIdx}), r.path(p, replog.File{Ext: replog.TipPack}))

	damaged, stray := r.path(p, replog.File{Ext: replog.TipPack}), r.path(&old, replog.File{Ext: replog.TipIdx})
	other := filepath.Join(filepath.Dir(stray), "pack-none-txn.idx")
	if err := os.Remove(damaged); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{damaged, stray, other} {
		if err := os.WriteFile(path, []byte("x"), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	crash(t, root)
	c, r = reopen(t, b, root)
	use(t, r, next)()
	tips(stray, r.path(p, replog.File{Ext: replog.TipIdx})) // the pack was damaged, the other file has no pack
	if !c.evictOne() {
		t.Fatal("nothing is evicted")
	}
	tips()
	checkEmptyState(t, c)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bytes != 0 {
		t.Errorf("%d bytes are left of an evicted repository", c.bytes)
	}
}
