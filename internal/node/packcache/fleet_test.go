package packcache

import (
	"container/list"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// fleet simulates a cache under the load of a CI fleet on a clock of its own. There is a new tip every 3 s, and jobs
// request its packs in four shapes, or have the last tip. The sizes are those of git.git.
type fleet struct {
	index  index
	evict  func(x *index, now time.Time, need int64) []*cacheEntry
	budget int64

	now      time.Time
	fills    []*simulatedFill
	delay    time.Duration // between the push and a job, at most: jobs wait for machines
	filling  int64
	made     int // packs
	distinct map[packsource.Key]bool
}

type simulatedFill struct {
	key        packsource.Key
	shape      shape
	size, done int64
	kept       bool
}

// shapes are the shapes of packs, and how many of 20 jobs request each. Fetches from the last tip have no shape.
var shapes = []struct {
	name string
	size int64
	jobs int
}{
	{"depth 1", 11 << 20, 10},
	{"depth 20", 19 << 20, 3},
	{"", 1 << 20, 3},
	{"branch", 309 << 20, 2},
	{"full", 318 << 20, 2},
}

const (
	fleetStep    = 100 * time.Millisecond
	fleetSpeed   = 80 << 20 // bytes of a pack made in a second
	fleetTips    = 200
	fleetJobs    = 30
	fleetBetween = 3 * time.Second
)

type fleetRequest struct {
	shape, tip int
	at         time.Duration
}

// run simulates the fleet and returns the number of packs made for each distinct request.
func (f *fleet) run(seed uint64) float64 {
	rng := rand.New(rand.NewPCG(seed, 1))
	requests := make(map[int64][]fleetRequest) // by step
	for tip := range fleetTips {
		for range fleetJobs {
			shape, n := 0, rng.IntN(20)
			for n >= shapes[shape].jobs {
				n -= shapes[shape].jobs
				shape++
			}
			at := time.Duration(tip)*fleetBetween + time.Duration(rng.Int64N(int64(f.delay)))
			requests[int64(at/fleetStep)] = append(requests[int64(at/fleetStep)], fleetRequest{shape, tip, at})
		}
	}
	f.distinct = make(map[packsource.Key]bool)
	f.index = newIndex(DefaultProbation, DefaultMaxIdle)
	f.now = newClock().t
	for step := range int64((fleetTips*fleetBetween + f.delay) / fleetStep) {
		for _, r := range requests[step] {
			f.request(r)
		}
		f.work()
		f.index.expire(f.now)
		f.now = f.now.Add(fleetStep)
	}
	return float64(f.made) / float64(len(f.distinct))
}

func (f *fleet) request(r fleetRequest) {
	key := packsource.Key(sha256.Sum256(fmt.Append(nil, r.shape, r.tip)))
	f.distinct[key] = true
	if e := f.index.entries[key]; e != nil {
		f.index.acquire(e, f.now)
		f.index.release(e, f.now)
		return
	}
	for _, fill := range f.fills {
		if fill.key == key {
			fill.kept = true
			f.index.popular.add(fill.shape, f.now)
			return
		}
	}
	f.made++
	s := shape{repository: "git", filter: shapes[r.shape].name}
	if s.filter == "" {
		s = shape{}
	}
	f.fills = append(f.fills, &simulatedFill{key: key, shape: s, size: shapes[r.shape].size,
		kept: f.index.skipsProbation(key, s)})
}

// work makes one step of all fills, and evicts for them.
func (f *fleet) work() {
	for _, fill := range f.fills {
		n := min(fill.size-fill.done, fleetSpeed*int64(fleetStep)/int64(time.Second))
		fill.done += n
		f.filling += n
		if fill.done == fill.size {
			f.filling -= fill.size
			f.index.add(&cacheEntry{key: fill.key, shape: fill.shape, size: fill.size}, fill.kept, f.now)
		}
	}
	f.fills = slices.DeleteFunc(f.fills, func(fill *simulatedFill) bool { return fill.done == fill.size })
	f.evict(&f.index, f.now, f.index.bytes+f.filling-f.budget)
}

// probationFirst was the order of eviction of earlier versions.
func probationFirst(x *index, need int64) (out []*cacheEntry) {
	for _, l := range []*list.List{x.young, x.kept} {
		for e := entryOf(l.Back()); e != nil && need > 0; e = entryOf(l.Back()) {
			need -= e.cost
			x.remove(e)
			out = append(out, e)
		}
	}
	return out
}

// A fleet makes each pack once, although superseded packs fill the cache, and although jobs are late. Earlier versions
// evicted entries on probation before all others, and had no popular shapes.
func TestFleet(t *testing.T) {
	t.Parallel()
	for _, budget := range []int64{8e9, 10 << 30} {
		for _, delay := range []time.Duration{5 * time.Second, 10 * time.Second, 15 * time.Second} {
			f := fleet{budget: budget, delay: delay, evict: func(x *index, now time.Time, need int64) []*cacheEntry {
				return x.evict(now, need, false)
			}}
			old := fleet{budget: budget, delay: delay, evict: func(x *index, _ time.Time, need int64) []*cacheEntry {
				clear(x.popular)
				return probationFirst(x, need)
			}}
			got, before := f.run(1), old.run(1)
			t.Logf("budget of %d MB, jobs up to %v late: %.3f packs made for each distinct request, before %.3f",
				budget/1e6, delay, got, before)
			if got != 1 {
				t.Errorf("budget of %d MB, jobs up to %v late: %.3f packs made for each distinct request, want 1",
					budget/1e6, delay, got)
			}
			if before < 1.15 {
				t.Errorf("budget of %d MB, jobs up to %v late: %.3f packs made before, want a load that shows the difference",
					budget/1e6, delay, before)
			}
		}
	}
}
