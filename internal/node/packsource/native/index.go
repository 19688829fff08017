package native

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/packhorse-git/packhorse/internal/git"
)

// entryMemory returns the memory of an entry in an indexTable while it is sorted, in bytes.
func entryMemory(format git.ObjectFormat) int64 { return int64(format.Size()) + 17 }

// indexTable collects the entries of a pack, in their order, for its index: entryMemory bytes each.
type indexTable struct {
	size    int    // of a raw ID
	ids     []byte // one after the other
	crcs    []uint32
	offsets []int64
	depths  []uint8        // number of deltas in the chain of the entry
	sum     []byte         // checksum of the pack; nil: it is not complete
	tags    []git.ObjectID // those that were added to the wants
}

func newIndexTable(format git.ObjectFormat, objects int) indexTable {
	return indexTable{size: format.Size(), ids: make([]byte, 0, objects*format.Size()), crcs: make([]uint32, 0, objects),
		offsets: make([]int64, 0, objects), depths: make([]uint8, 0, objects)}
}

func (t *indexTable) add(raw []byte, crc uint32, offset int64, depth int) {
	t.ids = append(t.ids, raw...)
	t.crcs = append(t.crcs, crc)
	t.offsets = append(t.offsets, offset)
	t.depths = append(t.depths, uint8(depth))
}

// depthAt returns the number of deltas in the chain of the entry at an offset. It is fast for recent entries, which
// most bases are.
func (t *indexTable) depthAt(offset int64) int {
	n := len(t.offsets)
	from, to, step := n, n, 1
	for ; from > 0 && t.offsets[from-1] >= offset; step *= 2 {
		to, from = from, max(from-step, 0)
	}
	at, ok := slices.BinarySearch(t.offsets[from:to], offset)
	if !ok {
		return 0
	}
	return int(t.depths[from+at])
}

func (t *indexTable) id(i uint32) []byte { return t.ids[int(i)*t.size:][:t.size] }

// sorted returns the numbers of the entries in the order of their IDs.
func (t *indexTable) sorted() []uint32 {
	const buckets = 1 << 16 // by the first two bytes
	var starts [buckets + 1]uint32
	bucket := func(i uint32) int { return int(binary.BigEndian.Uint16(t.id(i))) }
	n := uint32(len(t.crcs))
	for i := range n {
		starts[bucket(i)+1]++
	}
	for i := range buckets {
		starts[i+1] += starts[i]
	}
	order, next := make([]uint32, n), starts
	for i := range n {
		b := bucket(i)
		order[next[b]] = i
		next[b]++
	}
	for i := range buckets {
		if part := order[starts[i]:starts[i+1]]; len(part) > 1 {
			slices.SortFunc(part, t.compare)
		}
	}
	return order
}

// compare compares the IDs of two entries, most of which differ in their first bytes.
func (t *indexTable) compare(a, b uint32) int {
	x, y := t.id(a), t.id(b)
	if c := cmp.Compare(binary.BigEndian.Uint64(x), binary.BigEndian.Uint64(y)); c != 0 {
		return c
	}
	return bytes.Compare(x, y)
}

// write writes a pack index of version 2 (gitformat-pack(5)) without its checksum.
func (t *indexTable) write(w *bufio.Writer) {
	order := t.sorted()
	w.Write([]byte{0xff, 't', 'O', 'c', 0, 0, 0, 2})
	put := func(v uint32) { w.Write(binary.BigEndian.AppendUint32(w.AvailableBuffer(), v)) }
	var fanout [256]uint32
	for _, i := range order {
		fanout[t.id(i)[0]]++
	}
	total := uint32(0)
	for _, n := range fanout {
		total += n
		put(total)
	}
	for _, i := range order {
		w.Write(t.id(i))
	}
	for _, i := range order {
		put(t.crcs[i])
	}
	var large []int64
	for _, i := range order {
		if t.offsets[i] <= math.MaxInt32 {
			put(uint32(t.offsets[i]))
			continue
		}
		put(1<<31 | uint32(len(large)))
		large = append(large, t.offsets[i])
	}
	for _, offset := range large {
		w.Write(binary.BigEndian.AppendUint64(w.AvailableBuffer(), uint64(offset)))
	}
	w.Write(t.sum)
}
