package hydrate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// repositories returns records of n repositories, each with two packs of 1,100 bytes with their indexes.
func repositories(c *Cache, b *fakeBucket, n int) (rs []*Repository, recs []*replog.Record) {
	for i := range n {
		id, rec := fmt.Sprint("r", i), newRecord()
		b.addPack(rec, id, "1", 1000)
		b.addPack(rec, id, "2", 1000)
		rs, recs = append(rs, c.Repository(id)), append(recs, rec)
	}
	return rs, recs
}

// Eviction removes the packs of the repository that was used least recently, and of none in use.
func TestEviction(t *testing.T) {
	t.Parallel()
	b := newFakeBucket()
	var mu sync.Mutex
	var released []string
	c := open(t, Options{Bucket: b, Budget: 5000, Released: func(id string) {
		mu.Lock()
		defer mu.Unlock()
		released = append(released, id)
	}})
	rs, recs := repositories(c, b, 4)
	use(t, rs[0], recs[0])()
	use(t, rs[1], recs[1])()
	use(t, rs[0], recs[0])() // now repository 1 is the oldest
	done2 := use(t, rs[2], recs[2])
	for i, want := range []bool{true, false, true} {
		if got := rs[i].Complete(recs[i]); got != want {
			t.Errorf("repository %d is complete: %t, want %t", i, got, want)
		}
	}
	checkGone(t, rs[1], &recs[1].Packs[0])
	if len(released) != 1 || released[0] != "r1" {
		t.Errorf("released %v, want r1", released)
	}
	done0 := use(t, rs[0], recs[0])
	if _, err := rs[3].Use(t.Context(), recs[3], nil); !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) == 0 {
		t.Errorf("Use without room: %v, want Unavailable with a retry hint", err)
	}
	done2()
	rs[3].failed = nil
	use(t, rs[3], recs[3])()
	done0()
	checkFiles(t, b, rs[0], recs[0])
	checkFiles(t, b, rs[3], recs[3])
	checkGone(t, rs[2], &recs[2].Packs[1])
	onDisk, err := UsageOf(c.options.Root, 5000)
	if got := c.Usage(); err != nil || got != onDisk || got != (Usage{Repositories: 2, Bytes: c.bytes, Budget: 5000}) {
		t.Errorf("Usage() = %+v, UsageOf() = %+v, %v, want the same two repositories", got, onDisk, err)
	}

	big := newRecord()
	b.addPack(big, "big", "1", 5000)
	before := b.requests()
	if _, err := c.Repository("big").Use(t.Context(), big, nil); !fault.Is(err, fault.Unavailable) ||
		!strings.Contains(fault.Message(err), "store.cache") || b.requests() != before || !rs[0].Complete(recs[0]) {
		t.Errorf("Use of a repository larger than the cache: %v, want Unavailable with the setting", err)
	}
	big = newRecord()
	big.Refs = replog.Refs{Checkpoint: "refs/1-x", Bytes: 5001}
	if err := c.Repository("refs").Apply(t.Context(), big); !fault.Is(err, fault.Unavailable) ||
		!strings.Contains(fault.Message(err), "store.cache") || b.requests() != before {
		t.Errorf("Apply of refs larger than the cache: %v, want Unavailable with the setting", err)
	}
	if c.bytes != 4400 || c.unwritten != 0 {
		t.Errorf("%d bytes, %d not written; want 4400 and 0", c.bytes, c.unwritten)
	}
}

// Free space of the file system is left free.
func TestFloor(t *testing.T) {
	t.Parallel()
	b := newFakeBucket()
	c := open(t, Options{Bucket: b})
	rs, recs := repositories(c, b, 2)
	use(t, rs[0], recs[0])()
	c.options.MinFree = 1 << 60
	if _, err := rs[1].Use(t.Context(), recs[1], nil); !fault.Is(err, fault.Unavailable) ||
		!strings.Contains(fault.Message(err), "disk") {
		t.Errorf("Use without free space: %v, want Unavailable with the reason", err)
	}
	if rs[0].Complete(recs[0]) {
		t.Error("an idle repository was kept, want it evicted")
	}
}

// Room for a push comes from idle repositories. Without them, the push may use a part of the floor.
func TestMakeRoom(t *testing.T) {
	t.Parallel()
	b := newFakeBucket()
	c := open(t, Options{Bucket: b})
	rs, recs := repositories(c, b, 1)
	recs[0].Packs[0].Extra = []replog.File{{Ext: ".graph", Bytes: 5,
		SHA256: b.put("repos/r0/"+recs[0].Packs[0].Key+".graph", []byte("graph"))}}
	_, free, err := disk.Space(c.options.Root)
	if err != nil {
		t.Fatal(err)
	}
	apply(t, rs[0], recs[0])
	done := use(t, rs[0], recs[0])
	graph := filepath.Join(rs[0].Dir(), commitGraph)
	for _, test := range []struct {
		floor int64
		kept  bool // the idle repository
		kind  fault.Kind
	}{{1, true, 0}, {2 * free, true, 0}, {1 << 60, true, fault.Unavailable}, {2 * free, false, 0}} {
		if !test.kept {
			done()
		}
		c.options.MinFree = test.floor
		if err := c.MakeRoom(); test.kind == 0 && err != nil || test.kind != 0 && !fault.Is(err, test.kind) {
			t.Errorf("MakeRoom with a floor of %d bytes and %d free: %v, want %v", test.floor, free, err, test.kind)
		}
		if got := rs[0].Complete(recs[0]); got != test.kept {
			t.Errorf("after MakeRoom with a floor of %d bytes, the repository is kept: %t, want %t", test.floor, got, test.kept)
		}
		if _, err := os.Stat(graph); test.kept != (err == nil) {
			t.Errorf("commit-graph: %v, want it to be kept: %t", err, test.kept)
		}
	}
}

// Packs of a repository in use are always here, whatever is evicted at the same time.
func TestEvictionRaces(t *testing.T) {
	t.Parallel()
	b := newFakeBucket()
	c := open(t, Options{Bucket: b, Budget: 3 * 2200})
	rs, recs := repositories(c, b, 6)
	var users sync.WaitGroup
	for u := range 8 {
		random := rand.New(rand.NewPCG(1, uint64(u)))
		users.Go(func() {
			for range 40 {
				i := random.IntN(len(rs))
				if random.IntN(8) == 0 {
					rs[i].Prefetch(recs[i])
					continue
				}
				done, err := rs[i].Use(t.Context(), recs[i], nil)
				if fault.Is(err, fault.Unavailable) {
					continue
				} else if err != nil {
					t.Error(err)
					return
				}
				checkFiles(t, b, rs[i], recs[i])
				done()
			}
		})
	}
	users.Wait()
	gittest.WaitFor(t, "prefetches", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.unwritten == 0 && c.bytes <= 3*2200
	})
	total := int64(0)
	for i, r := range rs {
		if len(r.uses) != 0 {
			t.Errorf("uses %v are left, want none", r.uses)
		}
		if r.Complete(recs[i]) {
			checkFiles(t, b, r, recs[i])
			total += 2200
		}
	}
	if total != c.bytes {
		t.Errorf("%d bytes are counted, and complete repositories have %d", c.bytes, total)
	}
}

// Packs that a compaction replaced are removed when no caller uses an older record.
func TestReplacedPacks(t *testing.T) {
	t.Parallel()
	b := newFakeBucket()
	c := open(t, Options{Bucket: b})
	rs, recs := repositories(c, b, 1)
	r, first := rs[0], recs[0]
	apply(t, r, first)
	done := use(t, r, first)
	second := first.Next(replog.KindCompact, "test", first.At)
	second.Packs = nil
	b.addPack(second, r.id, "12", 1500)
	apply(t, r, second)
	doneToo := use(t, r, second)
	checkFiles(t, b, r, first)
	checkFiles(t, b, r, second)
	done()
	settle(t, r)
	checkGone(t, r, &first.Packs[0])
	checkGone(t, r, &first.Packs[1])
	checkFiles(t, b, r, second)
	use(t, r, first)() // a slow request
	settle(t, r)
	checkGone(t, r, &first.Packs[0])
	doneToo()
	if c.bytes != 1650 {
		t.Errorf("%d bytes, want 1650", c.bytes)
	}
}

func apply(t testing.TB, r *Repository, rec *replog.Record) {
	t.Helper()
	if err := r.Apply(t.Context(), rec); err != nil {
		t.Fatalf("Apply of record %d: %v", rec.Number, err)
	}
}

// settle waits for the end of a repository's task.
func settle(t testing.TB, r *Repository) {
	t.Helper()
	for {
		r.cache.mu.Lock()
		running := r.task
		r.cache.mu.Unlock()
		if running == nil {
			return
		}
		if err := (&waiter{ctx: context.Background()}).wait(running, "", r.cache.options.Wait); err != nil {
			t.Fatal(err)
		}
	}
}
