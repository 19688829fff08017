package packcache

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// modelEntry is an entry in the model of TestIndex.
type modelEntry struct {
	key   packsource.Key
	cost  int64
	used  time.Time
	order int // of events at the same time
	refs  int
	pins  int
	kept  bool

	repo    string
	indexed bool
	added   int // order of being added
}

// indexModel is a simple model of the index: a plain list that is sorted when needed.
type indexModel struct {
	entries []*modelEntry
	zombies map[*cacheEntry]*modelEntry // removed, but read
	order   int
	added   int
}

func (m *indexModel) find(k packsource.Key) *modelEntry {
	for _, e := range m.entries {
		if e.key == k {
			return e
		}
	}
	return nil
}

func (m *indexModel) touch(e *modelEntry, now time.Time) {
	m.order++
	e.used, e.order = now, m.order
}

func (m *indexModel) remove(es []*cacheEntry) {
	for _, e := range es {
		i := slices.IndexFunc(m.entries, func(x *modelEntry) bool { return x.key == e.key })
		if e.refs > 0 {
			m.zombies[e] = m.entries[i]
		}
		m.entries = slices.Delete(m.entries, i, i+1)
	}
}

// The index agrees with a simple model about entries, evictions and counts, for any sequence of operations.
func TestIndex(t *testing.T) {
	t.Parallel()
	keys := make([]packsource.Key, 8)
	for i := range keys {
		keys[i] = sha256.Sum256(fmt.Append(nil, i))
	}
	const probation, idle = 20 * time.Second, 5 * time.Minute
	rapid.Check(t, func(t *rapid.T) {
		i := newIndex(probation, idle)
		x := &i
		m := &indexModel{zombies: make(map[*cacheEntry]*modelEntry)}
		now := newClock().t
		var readers, borrowers []*cacheEntry
		expect := func(what string, got []*cacheEntry, want []*modelEntry, ordered bool) {
			a, b := make([]string, 0), make([]string, 0)
			for _, e := range got {
				a = append(a, e.key.String()[:4])
			}
			for _, e := range want {
				b = append(b, e.key.String()[:4])
			}
			if !ordered {
				slices.Sort(a)
				slices.Sort(b)
			}
			if !slices.Equal(a, b) {
				t.Fatalf("%s: %v, want %v", what, a, b)
			}
			m.remove(got)
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				k := rapid.SampledFrom(keys).Draw(t, "key")
				if old := x.entries[k]; old != nil { // is replaced
					m.remove([]*cacheEntry{old})
				}
				e := &cacheEntry{key: k, size: rapid.Int64Range(1, 100_000).Draw(t, "size"),
					indexSize: rapid.SampledFrom([]int64{0, 1, 5000}).Draw(t, "index"),
					repo:      rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "repository"),
					refs:      rapid.IntRange(0, 2).Draw(t, "readers")}
				kept := rapid.Bool().Draw(t, "kept")
				x.add(e, kept, now)
				for range e.refs {
					readers = append(readers, e)
				}
				m.added++
				me := &modelEntry{key: k, cost: (e.size+4095)/4096*4096 + (e.indexSize+4095)/4096*4096 + 4096, refs: e.refs,
					kept: kept, repo: e.repo, indexed: e.indexSize > 0, added: m.added}
				m.touch(me, now)
				m.entries = append(m.entries, me)
			},
			"acquire": func(t *rapid.T) {
				e := x.entries[rapid.SampledFrom(keys).Draw(t, "key")]
				if e == nil {
					t.Skip("is not there")
				}
				x.acquire(e, now)
				readers = append(readers, e)
				me := m.find(e.key)
				me.refs, me.kept = me.refs+1, true
				m.touch(me, now)
			},
			"release": func(t *rapid.T) {
				if len(readers) == 0 {
					t.Skip("no readers")
				}
				i := rapid.IntRange(0, len(readers)-1).Draw(t, "reader")
				e := readers[i]
				readers = slices.Delete(readers, i, i+1)
				x.release(e, now)
				if z := m.zombies[e]; z != nil {
					if z.refs--; z.refs == 0 {
						delete(m.zombies, e)
					}
				} else {
					me := m.find(e.key)
					me.refs--
					if me.kept || me.refs == 0 { // then the probation begins
						m.touch(me, now)
					}
				}
			},
			"pin": func(t *rapid.T) {
				e := x.entries[rapid.SampledFrom(keys).Draw(t, "key")]
				if e == nil {
					t.Skip("is not there")
				}
				x.pin(e)
				borrowers = append(borrowers, e)
				me := m.find(e.key)
				me.refs, me.pins = me.refs+1, me.pins+1
			},
			"unpin": func(t *rapid.T) {
				if len(borrowers) == 0 {
					t.Skip("no borrowers")
				}
				i := rapid.IntRange(0, len(borrowers)-1).Draw(t, "borrower")
				e := borrowers[i]
				borrowers = slices.Delete(borrowers, i, i+1)
				x.unpin(e)
				me := cmp.Or(m.zombies[e], m.find(e.key))
				me.refs, me.pins = me.refs-1, me.pins-1
				if me.refs == 0 {
					delete(m.zombies, e)
				}
			},
			"drop": func(t *rapid.T) {
				e := x.entries[rapid.SampledFrom(keys).Draw(t, "key")]
				if e == nil {
					t.Skip("is not there")
				}
				x.remove(e)
				m.remove([]*cacheEntry{e})
			},
			"assign": func(t *rapid.T) {
				e := x.entries[rapid.SampledFrom(keys).Draw(t, "key")]
				if e == nil {
					t.Skip("is not there")
				}
				m.added++
				me := m.find(e.key)
				me.repo, me.added = "c", m.added
				x.assign(e, "c")
			},
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "seconds")) * time.Second)
				var young, kept []*modelEntry
				for _, e := range m.entries {
					switch age := now.Sub(e.used); {
					case e.refs > 0:
					case e.kept && age >= idle:
						kept = append(kept, e)
					case !e.kept && age >= probation:
						young = append(young, e)
					}
				}
				gotYoung, gotKept := x.expire(now)
				expect("on probation", gotYoung, young, false)
				expect("idle", gotKept, kept, false)
			},
			"evict": func(t *rapid.T) {
				need := rapid.Int64Range(-10, 300_000).Draw(t, "bytes")
				inUse := rapid.Bool().Draw(t, "in use too")
				order := slices.Clone(m.entries)
				age := func(e *modelEntry) time.Duration {
					if e.kept {
						return now.Sub(e.used)
					}
					return 2 * now.Sub(e.used)
				}
				slices.SortFunc(order, func(a, b *modelEntry) int {
					switch {
					case a.kept == b.kept:
						return a.order - b.order
					case a.kept:
						return cmp.Or(cmp.Compare(age(b), age(a)), 1)
					}
					return cmp.Or(cmp.Compare(age(b), age(a)), -1)
				})
				var want []*modelEntry
				for n, i := need, 0; n > 0 && i < len(order); i++ {
					if order[i].refs == 0 || inUse && order[i].pins == 0 {
						want = append(want, order[i])
						n -= order[i].cost
					}
				}
				expect("evicted", x.evict(now, need, inUse), want, true)
			},
			"": func(t *rapid.T) {
				var bytes, zombies, pinned int64
				repos := make(map[string][]*modelEntry)
				for _, e := range m.entries {
					bytes += e.cost
					if e.pins > 0 {
						pinned += e.cost
					}
					if e.indexed {
						repos[e.repo] = append(repos[e.repo], e)
					}
				}
				for _, e := range m.zombies {
					zombies += e.cost
				}
				if len(x.entries) != len(m.entries) || x.bytes != bytes || x.zombies != zombies {
					t.Fatalf("%d entries of %d bytes and %d more, want %d, %d, %d",
						len(x.entries), x.bytes, x.zombies, len(m.entries), bytes, zombies)
				}
				if x.pinned != pinned {
					t.Fatalf("%d bytes pinned, want %d", x.pinned, pinned)
				}
				for _, repo := range []string{"", "a", "b", "c"} {
					es := repos[repo]
					slices.SortFunc(es, func(a, b *modelEntry) int { return b.added - a.added })
					want := make([]packsource.Key, 0)
					for _, e := range es {
						want = append(want, e.key)
					}
					if got := x.newest(repo); !slices.Equal(got, want) {
						t.Fatalf("newest(%q) = %v, want %v", repo, got, want)
					}
				}
			},
		})
	})
}
