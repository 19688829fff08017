package resolve

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/packhorse-git/packhorse/internal/node"
)

// table stores answers by question. Readers take no lock, allocate nothing, and only set a mark. Writers hold the lock
// of their Tiers.
//
// A bucket is an immutable list, so a reader that has its first link can continue undisturbed. There are as many
// buckets as entries, so lists are short. Entries are evicted by the clock algorithm: the hand takes those that were
// not used since its last pass.
type table struct {
	seed    maphash.Seed
	mask    uint64
	buckets []atomic.Pointer[link]

	// Guarded by the lock of the Tiers.
	ring     []*entry // each at its own place
	capacity int
	hand     int
	misses   int // entries that are errors
}

// link is an entry of a bucket with the following ones. It is immutable.
type link struct {
	entry *entry
	next  *link
}

// entry is one answer. It is immutable, except for the mark and the fields of the table.
type entry struct {
	question node.Question
	result   node.Result
	hash     uint64
	state    *state
	until    int64 // end of the entry, if its state does not end before; zero means the end of the state
	used     atomic.Bool

	repo  *repository
	place int // in the ring
}

func newTable(capacity int) *table {
	size := 1
	for size < capacity {
		size *= 2
	}
	return &table{seed: maphash.MakeSeed(), mask: uint64(size - 1), buckets: make([]atomic.Pointer[link], size),
		capacity: capacity}
}

func (t *table) hash(q node.Question) uint64 {
	const odd = 0x9e3779b97f4a7c15 // makes the hash depend on the order of the strings
	return maphash.String(t.seed, q.Repository.String())*odd ^ maphash.String(t.seed, q.Revision)
}

// get returns the entry for a question, valid or not, or nil.
func (t *table) get(q node.Question) *entry {
	hash := t.hash(q)
	for n := t.buckets[hash&t.mask].Load(); n != nil; n = n.next {
		if n.entry.hash == hash && n.entry.question == q {
			return n.entry
		}
	}
	return nil
}

// put adds an entry, replaces one for the same question, and returns the evicted entries. over reports entries that may
// be evicted at once.
func (t *table) put(e *entry, over func(*entry) bool) (gone []*entry) {
	e.hash = t.hash(e.question)
	if old := t.get(e.question); old != nil {
		t.unlink(old)
		gone = append(gone, old)
		e.place = old.place
		t.ring[e.place] = e
	} else if len(t.ring) < t.capacity {
		e.place = len(t.ring)
		t.ring = append(t.ring, e)
	} else {
		old := t.victim(over)
		t.unlink(old)
		gone = append(gone, old)
		e.place = old.place
		t.ring[e.place] = e
	}
	if e.result.Err != nil {
		t.misses++
	}
	bucket := &t.buckets[e.hash&t.mask]
	bucket.Store(&link{e, bucket.Load()})
	return gone
}

// victim returns the entry to evict: the first one that is over or was not used since the hand's last pass.
func (t *table) victim(over func(*entry) bool) *entry {
	for {
		e := t.ring[t.hand]
		t.hand = (t.hand + 1) % len(t.ring)
		if over(e) || !e.used.Swap(false) {
			return e
		}
	}
}

// unlink removes an entry from its bucket.
func (t *table) unlink(e *entry) {
	if e.result.Err != nil {
		t.misses--
	}
	bucket := &t.buckets[e.hash&t.mask]
	bucket.Store(without(bucket.Load(), e))
}

func without(n *link, e *entry) *link {
	switch {
	case n == nil:
		return nil
	case n.entry == e:
		return n.next
	}
	return &link{n.entry, without(n.next, e)}
}
