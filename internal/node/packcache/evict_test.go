package packcache

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// Entries with one request are evicted early. Entries with a second request are kept at once.
func TestProbation(t *testing.T) {
	t.Parallel()
	clock := newClock()
	src := &fakeSource{size: 100_000}
	c := newCache(t, src, Options{Now: clock.now})
	has := func(name string) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.index.entries[spec(name).Key()] != nil
	}
	for _, name := range []string{"once", "twice", "twice"} {
		fetch(t, c, spec(name), src)
		c.settled(t)
	}
	// A follower is a second request as well.
	src.gate = make(chan struct{})
	p, err := c.Open(t.Context(), spec("followed"))
	if err != nil {
		t.Fatal(err)
	}
	q, err := c.Open(t.Context(), spec("followed"))
	if err != nil {
		t.Fatal(err)
	}
	close(src.gate)
	finish(t, p, spec("followed"), src)
	finish(t, q, spec("followed"), src)
	c.settled(t)

	clock.add(DefaultProbation)
	c.sweep()
	if has("once") || !has("twice") || !has("followed") {
		t.Errorf("after probation: once %v, twice %v, followed %v", has("once"), has("twice"), has("followed"))
	}
	fetch(t, c, spec("once"), src) // a second time, after all
	c.settled(t)
	clock.add(DefaultProbation)
	c.sweep()
	if !has("once") {
		t.Error("a repeated key is on probation again, want it kept")
	}
	clock.add(DefaultMaxIdle)
	c.sweep()
	if c.counts().entries != 0 || metric(c.m.evictions.WithLabelValues(evictIdle)) != 3 {
		t.Errorf("%v entries, %v idle ones removed, want 0, 3", c.counts().entries,
			metric(c.m.evictions.WithLabelValues(evictIdle)))
	}
}

// After a second request, packs for the next tips skip probation. Other shapes and fetches with haves do not.
func TestPopularShape(t *testing.T) {
	t.Parallel()
	tip := func(n int) []git.ObjectID { return []git.ObjectID{git.MustParseObjectID(fmt.Sprintf("%040d", n))} }
	clone := func(n int) *packsource.Spec {
		return &packsource.Spec{Repo: packsource.Repository{Incarnation: "one"}, Wants: tip(n)}
	}
	shallow, partial, fetched, other := clone(3), clone(3), clone(3), clone(3)
	shallow.Shallow, partial.Filter, fetched.Haves, other.Repo.Incarnation = tip(1), "blob:none", tip(1), "other"
	clock, src := newClock(), &fakeSource{size: 1000}
	c := newCache(t, src, Options{Now: clock.now})
	for _, s := range []*packsource.Spec{clone(1), clone(1), clone(2), shallow, partial, fetched, other} {
		fetch(t, c, s, src)
		c.settled(t)
	}
	clock.add(DefaultProbation)
	c.sweep()
	if !c.Has(clone(2).Key()) {
		t.Error("the pack of the next tip is gone after its probation, want it kept")
	}
	for _, s := range []*packsource.Spec{shallow, partial, fetched, other} {
		if c.Has(s.Key()) {
			t.Errorf("pack with shape %+v is kept, want it gone after its probation", shapeOf(s))
		}
	}
	clock.add(DefaultMaxIdle - DefaultProbation)
	fetch(t, c, clone(4), src)
	c.settled(t)
	clock.add(DefaultProbation)
	c.sweep()
	if !c.Has(clone(4).Key()) {
		t.Error("a pack made while the shape was popular is gone, want it kept")
	}
	fetch(t, c, clone(5), src)
	c.settled(t)
	clock.add(DefaultProbation)
	c.sweep()
	if c.Has(clone(5).Key()) {
		t.Error("a pack made after the shape was popular is kept, want it gone after its probation")
	}
}

// The number of popular shapes is limited.
func TestPopularLimit(t *testing.T) {
	t.Parallel()
	p, now := make(popular), newClock().t
	for i := range maxPopular + 1 {
		p.add(shape{filter: fmt.Sprint(i)}, now)
	}
	p.add(shape{}, now)
	if len(p) != maxPopular || p.has(shape{}) {
		t.Errorf("%d popular shapes, want %d", len(p), maxPopular)
	}
	p.add(shape{filter: "0"}, now.Add(time.Second))
	if p.expire(now.Add(time.Minute), time.Minute); len(p) != 1 {
		t.Errorf("%d popular shapes after their time, want 1", len(p))
	}
}

func TestNoProbation(t *testing.T) {
	t.Parallel()
	clock := newClock()
	src := &fakeSource{size: 1000}
	c := newCache(t, src, Options{Now: clock.now, Probation: -1})
	fetch(t, c, spec("a"), src)
	c.settled(t)
	clock.add(DefaultMaxIdle - 1)
	c.sweep()
	if info := fetch(t, c, spec("a"), src); info.Result != packsource.Hit {
		t.Errorf("got %v, want %v", info.Result, packsource.Hit)
	}
}

// A reader keeps its file when the entry is evicted, and the bytes count until the reader has finished.
func TestEvictionUnderReaders(t *testing.T) {
	t.Parallel()
	src := &fakeSource{size: 500_000}
	c := newCache(t, src, Options{MaxBytes: 1_200_000})
	var packs []packsource.Pack
	for _, s := range []string{"a", "b"} {
		fetch(t, c, spec(s), src)
		c.settled(t)
		p, err := c.Open(t.Context(), spec(s))
		if err != nil {
			t.Fatal(err)
		}
		packs = append(packs, p)
	}
	last, err := c.Open(t.Context(), spec("c")) // read until all is counted: with no reader it is the one that goes
	if err != nil {
		t.Fatal(err)
	}
	c.settled(t)
	if _, err := os.Stat(c.path(spec("a").Key(), dataExt)); !os.IsNotExist(err) {
		t.Errorf("the evicted entry's file: %v", err)
	}
	if n := metric(c.m.bytes); n < 1_500_000 {
		t.Errorf("%v bytes counted while the evicted entry is read", n)
	}
	finish(t, last, spec("c"), src)
	for i, s := range []string{"a", "b"} {
		if info := finish(t, packs[i], spec(s), src); info.Result != packsource.Hit {
			t.Errorf("reader of %s: %v, want %v", s, info.Result, packsource.Hit)
		}
	}
	if n := metric(c.m.bytes); n > 1_200_000 {
		t.Errorf("%v bytes counted afterwards", n)
	}
}

// The reader of a fill is a reader of the resulting entry.
func TestEvictionUnderFollower(t *testing.T) {
	t.Parallel()
	src := &fakeSource{size: 500_000}
	c := newCache(t, src, Options{MaxBytes: 1_200_000})
	var packs []packsource.Pack
	for _, s := range []string{"a", "b"} {
		p, err := c.Open(t.Context(), spec(s))
		if err != nil {
			t.Fatal(err)
		}
		c.settled(t)
		if p.Size() != int64(len(framed(spec(s), src.size, 0))) {
			t.Errorf("size %d of a complete fill", p.Size())
		}
		packs = append(packs, p)
	}
	fetch(t, c, spec("c"), src)
	c.settled(t)
	if _, err := os.Stat(c.path(spec("a").Key(), dataExt)); !os.IsNotExist(err) {
		t.Errorf("the evicted entry's file: %v", err)
	}
	finish(t, packs[0], spec("a"), src)
	finish(t, packs[1], spec("b"), src)
}

// Requests for few keys under a budget for fewer: names are reused all the time, and everybody gets the right pack.
func TestChurn(t *testing.T) {
	t.Parallel()
	src := &fakeSource{size: 60_000, block: 4000}
	c := newCache(t, src, Options{MaxBytes: 200_000})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 60 {
				s := spec(fmt.Sprint((i*7 + w*3) % 9))
				p, err := c.Open(t.Context(), s)
				if err != nil {
					t.Error(err)
					return
				}
				if i%10 == 0 {
					p.Close()
					continue
				}
				var out extentOutput
				if err := p.Send(t.Context(), &out); err != nil || !bytes.Equal(out.data.Bytes(), framed(s, src.size, src.block)) {
					t.Errorf("%v, %d bytes", err, out.data.Len())
				}
				p.Close()
			}
		})
	}
	wg.Wait()
	gittest.WaitFor(t, "the budget is kept", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.index.bytes+c.filling+c.index.zombies <= c.max
	})
}

// Close while everything is under way leaves a directory that the next run can use.
func TestCloseUnderLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src := &fakeSource{size: 60_000, block: 1000}
	for round := range 5 {
		c := newCache(t, src, Options{Dir: dir, MaxBytes: 400_000})
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := 0; ; i++ {
					s := spec(fmt.Sprint((i + w) % 9))
					p, err := c.Open(t.Context(), s)
					if err != nil {
						return
					}
					receive(t.Context(), p, s, src)
				}
			})
		}
		time.Sleep(time.Duration(round) * 5 * time.Millisecond)
		c.Close()
		wg.Wait()
		c.checkAtRest(t)
	}
}

// Time on probation counts double: packs with one request leave before one with several requests, but not if that is
// idle for much longer.
func TestProbationCountsDouble(t *testing.T) {
	t.Parallel()
	clock, src := newClock(), &fakeSource{size: 100_000}
	c := newCache(t, src, Options{MaxBytes: 500_000, Now: clock.now})
	for _, name := range []string{"twice", "twice", "once 1", "once 2", "once 3", "once 4", "once 5", "once 6"} {
		fetch(t, c, spec(name), src)
		c.settled(t)
		clock.add(time.Second)
	}
	if info := fetch(t, c, spec("twice"), src); info.Result != packsource.Hit {
		t.Errorf("got %v, want %v", info.Result, packsource.Hit)
	}
	clock.add(10 * time.Second)
	for _, name := range []string{"new 1", "new 2", "new 3", "new 4"} {
		fetch(t, c, spec(name), src)
		c.settled(t)
		clock.add(time.Second)
	}
	if c.Has(spec("twice").Key()) || !c.Has(spec("new 1").Key()) {
		t.Error("the idle pack was kept in place of a new one, want the new one")
	}
}

// Fills that are given up at any moment, also in that of their completion, never leave two entries under one key.
func TestGivenUpWhileComplete(t *testing.T) {
	t.Parallel()
	src := &fakeSource{size: 3000, block: 1000}
	c := newCache(t, src, Options{Grace: -1, MaxBytes: 40_000})
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := range 100 {
				s := spec(fmt.Sprint(i / 4 % 5))
				p, err := c.Open(t.Context(), s)
				if err != nil {
					t.Error(err)
					return
				}
				if (i+w)%3 > 0 {
					p.Close() // before its end, if it is a fill
				} else if _, err := receive(t.Context(), p, s, src); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	c.settled(t)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	c.checkAtRest(t)
	for k := range c.index.entries {
		for _, ext := range []string{dataExt, metaExt} {
			if _, err := os.Stat(c.path(k, ext)); err != nil {
				t.Errorf("an entry without its file: %v", err)
			}
		}
	}
}

// A fill that is given up after its last byte, and has a successor, makes no entry.
func TestSuccessorMakesTheEntry(t *testing.T) {
	t.Parallel()
	first := make(chan struct{})
	src := &fakeSource{size: 1000, ended: make(chan error, 2)}
	src.after = func(int64, packsource.Output) error {
		if src.opens.Load() == 1 {
			<-first // and ignore the cancellation
		}
		return nil
	}
	c := newCache(t, src, Options{Grace: -1})
	p, err := c.Open(t.Context(), spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	gittest.WaitFor(t, "the pack is written", func() bool {
		f := p.(*follower).f
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.stored > 0
	})
	p.Close()
	q, err := c.Open(t.Context(), spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	finish(t, q, spec("a"), src)
	gittest.WaitFor(t, "the second fill is kept",
		func() bool { c.mu.Lock(); defer c.mu.Unlock(); return len(c.index.entries) == 1 })
	c.mu.Lock()
	e := c.index.entries[spec("a").Key()]
	c.mu.Unlock()
	close(first)
	<-p.(*follower).f.done
	c.mu.Lock()
	if c.index.entries[spec("a").Key()] != e || e.gone {
		t.Error("the abandoned fill replaced the entry, want the entry")
	}
	c.mu.Unlock()
	if info := fetch(t, c, spec("a"), src); info.Result != packsource.Hit {
		t.Errorf("afterwards: %v, want %v", info.Result, packsource.Hit)
	}
}
