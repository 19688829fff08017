package resolve

import (
	"hash/maphash"
	"sync/atomic"
)

// table holds what is remembered, by question. Who reads takes no lock, allocates nothing, and writes only a mark that
// is not set yet. Writers hold the lock of their Tiers.
//
// A bucket is an immutable list: whoever found its first node reads on undisturbed, whatever becomes of it. There are
// as many buckets as entries may be there, so that lists are short. What has to go is found by a hand that goes round:
// what nobody asked for since it last came by.
type table struct {
	seed    maphash.Seed
	mask    uint64
	buckets []atomic.Pointer[node]

	// Guarded by the lock of the Tiers.
	ring     []*entry // each at its place
	capacity int
	hand     int
	misses   int // entries that are errors
}

// node is one of a bucket's entries, and those behind it. Immutable.
type node struct {
	entry *entry
	next  *node
}

// entry is one answer. Immutable but for the mark, and for what belongs to the table.
type entry struct {
	question Question
	result   Result
	hash     uint64
	state    *state
	until    int64 // when it ends, if its state does not end before; 0: with its state
	used     atomic.Bool

	repo  *repository
	place int // in the ring
}

func newTable(capacity int) *table {
	size := 1
	for size < capacity {
		size *= 2
	}
	return &table{seed: maphash.MakeSeed(), mask: uint64(size - 1), buckets: make([]atomic.Pointer[node], size),
		capacity: capacity}
}

func (t *table) hash(q Question) uint64 {
	const odd = 0x9e3779b97f4a7c15 // the two strings do not change places
	return maphash.String(t.seed, q.Repository.String())*odd ^ maphash.String(t.seed, q.Revision)
}

// get finds the entry for a question, whether it still holds or not; nil: there is none.
func (t *table) get(q Question) *entry {
	hash := t.hash(q)
	for n := t.buckets[hash&t.mask].Load(); n != nil; n = n.next {
		if n.entry.hash == hash && n.entry.question == q {
			return n.entry
		}
	}
	return nil
}

// put adds an entry, in the place of one for the same question, and returns which ones had to go; over tells which may
// go at once.
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
	bucket.Store(&node{e, bucket.Load()})
	return gone
}

// victim finds what has to go: the first entry that is over, or was not asked for since the hand came by.
func (t *table) victim(over func(*entry) bool) *entry {
	for {
		e := t.ring[t.hand]
		t.hand = (t.hand + 1) % len(t.ring)
		if over(e) || !e.used.Swap(false) {
			return e
		}
	}
}

// unlink takes an entry out of its bucket.
func (t *table) unlink(e *entry) {
	if e.result.Err != nil {
		t.misses--
	}
	bucket := &t.buckets[e.hash&t.mask]
	bucket.Store(without(bucket.Load(), e))
}

func without(n *node, e *entry) *node {
	switch {
	case n == nil:
		return nil
	case n.entry == e:
		return n.next
	}
	return &node{n.entry, without(n.next, e)}
}
