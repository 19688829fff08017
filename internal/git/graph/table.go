package graph

import (
	"bytes"
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/packhorse-git/packhorse/internal/git"
)

// commitTable keeps the commits that are not in a commit-graph. With SHA-1 each takes about 65 bytes: 16 for dates and
// parents, 20 for the ID, 20 for the tree, 5 to 11 for the index. Entries have consecutive numbers from 0 and are never
// removed. A table that has grown too large is replaced. Parsed entries are read without a lock.
type commitTable struct {
	base uint32 // added to an entry's number to make it a node
	size int    // bytes of a raw object ID

	chunks atomic.Pointer[[]*chunk]

	mu      sync.RWMutex
	seed    maphash.Seed
	slots   []uint32 // open addressing: entry number + 1, or 0
	n       uint32
	octopus map[uint32][]uint32 // all parents of entries with more than two
}

// Entries are in chunks, which do not move. The first one is small, because many tables have few commits. Each of the
// next ones doubles the number of entries, up to chunkLen; all others have chunkLen.
const (
	firstBits = 4
	chunkBits = 10
	chunkLen  = 1 << chunkBits
)

// place returns the chunk of an entry, and its position there.
func place(i uint32) (chunk, at int) {
	if i >= chunkLen {
		return chunkBits - firstBits + int(i>>chunkBits), int(i % chunkLen)
	}
	k := bits.Len32(i >> firstBits)
	if k == 0 {
		return 0, int(i)
	}
	return k, int(i) - 1<<(firstBits+k-1)
}

// chunkSize returns the number of entries of a chunk.
func chunkSize(k int) int { return 1 << min(firstBits+max(k-1, 0), chunkBits) }

type chunk struct {
	entries    []commitEntry
	ids, trees []byte
}

// commitEntry is one commit. first is written last: a reader that finds it set may read the other fields.
type commitEntry struct {
	first  atomic.Uint32 // 0: not parsed. 1: no parents. Otherwise: node of the first parent + 2
	second uint32        // 0: no second parent. manyParents: see octopus. Otherwise: node of the second parent + 1
	date   int64
}

const manyParents = ^uint32(0)

func newTable(base uint32, size int) *commitTable {
	t := &commitTable{base: base, size: size, seed: maphash.MakeSeed(), slots: make([]uint32, 2<<firstBits),
		octopus: map[uint32][]uint32{}}
	t.chunks.Store(&[]*chunk{})
	return t
}

// len returns the number of entries, parsed or not.
func (t *commitTable) len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return int(t.n)
}

func (t *commitTable) entry(i uint32) *commitEntry {
	k, at := place(i)
	return &(*t.chunks.Load())[k].entries[at]
}

func (t *commitTable) raw(i uint32) []byte {
	k, at := place(i)
	return (*t.chunks.Load())[k].ids[at*t.size:][:t.size:t.size]
}

func (t *commitTable) id(node uint32) git.ObjectID { return git.RawObjectID(t.rawID(node)) }

func (t *commitTable) rawID(node uint32) []byte { return t.raw(node - t.base) }

// rawTree returns the tree of a parsed node.
func (t *commitTable) rawTree(node uint32) []byte {
	k, at := place(node - t.base)
	return (*t.chunks.Load())[k].trees[at*t.size:][:t.size:t.size]
}

// find returns the node of a raw object ID, parsed or not.
func (t *commitTable) find(raw []byte) (node uint32, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	i := t.slots[t.slot(raw)]
	return t.base + i - 1, i != 0
}

// slot returns the slot of a raw object ID, or the free slot for it. The caller holds mu.
func (t *commitTable) slot(raw []byte) int {
	mask := len(t.slots) - 1
	at := int(maphash.Bytes(t.seed, raw)) & mask
	for t.slots[at] != 0 && !bytes.Equal(t.raw(t.slots[at]-1), raw) {
		at = (at + 1) & mask
	}
	return at
}

// intern returns the node of a raw object ID. If it is new, it is added without being parsed.
func (t *commitTable) intern(raw []byte) uint32 {
	if node, ok := t.find(raw); ok {
		return node
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.slot(raw)
	if i := t.slots[at]; i != 0 {
		return t.base + i - 1
	}
	i := t.n
	t.n++
	if k, at := place(i); at == 0 {
		n := chunkSize(k)
		chunks := append(*t.chunks.Load(), &chunk{make([]commitEntry, n), make([]byte, n*t.size), make([]byte, n*t.size)})
		t.chunks.Store(&chunks)
	}
	copy(t.raw(i), raw)
	t.slots[at] = i + 1
	if int(t.n)*4 > len(t.slots)*3 {
		t.grow()
	}
	return t.base + i
}

func (t *commitTable) grow() {
	t.slots = make([]uint32, 2*len(t.slots))
	for i := range t.n {
		t.slots[t.slot(t.raw(i))] = i + 1
	}
}

// parsed reports whether the node's parents are known.
func (t *commitTable) parsed(node uint32) bool { return t.entry(node-t.base).first.Load() != 0 }

// set stores a parsed commit; parents are nodes. A second call for the same node changes nothing.
func (t *commitTable) set(node uint32, date int64, tree []byte, parents []uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entry(node - t.base)
	if e.first.Load() != 0 {
		return
	}
	e.date = date
	copy(t.rawTree(node), tree)
	switch len(parents) {
	case 0:
		e.first.Store(1)
		return
	case 1:
	case 2:
		e.second = parents[1] + 1
	default:
		e.second = manyParents
		t.octopus[node] = append([]uint32(nil), parents...)
	}
	e.first.Store(parents[0] + 2)
}

func (t *commitTable) date(node uint32) int64 { return t.entry(node - t.base).date }

// parents appends the parents of a parsed node.
func (t *commitTable) parents(node uint32, to []uint32) []uint32 {
	e := t.entry(node - t.base)
	first := e.first.Load()
	if first < 2 {
		return to
	}
	if e.second == manyParents {
		t.mu.RLock()
		defer t.mu.RUnlock()
		return append(to, t.octopus[node]...)
	}
	to = append(to, first-2)
	if e.second != 0 {
		to = append(to, e.second-1)
	}
	return to
}
