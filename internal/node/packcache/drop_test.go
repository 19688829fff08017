package packcache

import (
	"os"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// TestDrop drops the packs of one repository, of this run and of an earlier one, and leaves those of others.
func TestDrop(t *testing.T) {
	t.Parallel()
	dir, src := t.TempDir(), &fakeSource{size: 100_000}
	one, other := spec("one"), spec("other")
	filtered := &packsource.Spec{Repo: one.Repo, Filter: "blob:none"}
	c := newCache(t, src, Options{Dir: dir})
	for _, s := range []*packsource.Spec{one, filtered, other} {
		fetch(t, c, s, src)
	}
	c.settled(t)
	if d := c.Drop("one", Damaged); d.Entries != 2 || d.Bytes < 200_000 {
		t.Errorf("dropped %+v", d)
	}
	for s, want := range map[*packsource.Spec]packsource.Result{one: packsource.Miss, filtered: packsource.Miss,
		other: packsource.Hit} {
		if info := fetch(t, c, s, src); info.Result != want {
			t.Errorf("%v: %v, want %v", s, info.Result, want)
		}
		c.settled(t)
	}
	c.Close()
	c = newCache(t, src, Options{Dir: dir})
	if d := c.Drop("one", Requested); d.Entries != 2 || metric(c.m.evictions.WithLabelValues(evictDropped)) != 2 {
		t.Errorf("after a restart: dropped %+v", d)
	}
	if _, err := os.Stat(c.path(one.Key(), dataExt)); !os.IsNotExist(err) {
		t.Errorf("the file: %v", err)
	}
	if info := fetch(t, c, other, src); info.Result != packsource.Hit {
		t.Errorf("the other: %v, want %v", info.Result, packsource.Hit)
	}
	if d := c.DropAll(); d.Entries != 1 {
		t.Errorf("dropped %+v", d)
	}
}

// TestDropWhileFilling drops a repository during a fill. The cache keeps no entry, and the readers get the whole pack.
func TestDropWhileFilling(t *testing.T) {
	t.Parallel()
	src := &fakeSource{size: 200_000, gate: make(chan struct{}, 1)}
	c := newCache(t, src, Options{})
	p, err := c.Open(t.Context(), spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	c.Drop("a", Damaged)
	close(src.gate)
	if info := finish(t, p, spec("a"), src); info.Result != packsource.Miss {
		t.Error(info.Result)
	}
	c.settled(t)
	c.checkAtRest(t)
	for range 2 {
		if info := fetch(t, c, spec("a"), src); info.Result == packsource.Hit {
			return
		}
		c.settled(t)
	}
	t.Error("a later pack was not kept, want it kept")
}

// TestDamagedSourceDrops has a source that finds its repository damaged. Its earlier packs are also dropped.
func TestDamagedSourceDrops(t *testing.T) {
	t.Parallel()
	src := &fakeSource{size: 100_000}
	c := newCache(t, src, Options{})
	fetch(t, c, spec("a"), src)
	c.settled(t)
	src.after = func(int64, packsource.Output) error { return fault.New(fault.Corrupt, "object 1234 is damaged") }
	filtered := &packsource.Spec{Repo: spec("a").Repo, Filter: "blob:none"}
	p, err := c.Open(t.Context(), filtered)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Send(t.Context(), &output{}); !fault.Is(err, fault.Corrupt) {
		t.Error(err)
	}
	p.Close()
	c.settled(t)
	src.after = nil
	if n := metric(c.m.evictions.WithLabelValues(evictDamaged)); n != 1 {
		t.Errorf("%v entries dropped, want 1", n)
	}
	if info := fetch(t, c, spec("a"), src); info.Result != packsource.Miss {
		t.Errorf("afterwards: %v, want %v", info.Result, packsource.Miss)
	}
}

// TestEntryWrittenTo has another program write to the file of an entry: it is read again before its next use.
func TestEntryWrittenTo(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(b []byte)
		want   packsource.Result
	}{
		"other bytes": {func(b []byte) { b[50_000] ^= 1 }, packsource.Miss},
		"same bytes":  {func([]byte) {}, packsource.Hit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := &fakeSource{size: 100_000}
			c := newCache(t, src, Options{})
			fetch(t, c, spec("a"), src)
			c.settled(t)
			path := c.path(spec("a").Key(), dataExt)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			test.change(b)
			if err := os.WriteFile(path+".new", b, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
			if info := fetch(t, c, spec("a"), src); info.Result != test.want {
				t.Errorf("%v, want %v", info.Result, test.want)
			}
		})
	}
}
