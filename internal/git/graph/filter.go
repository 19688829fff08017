package graph

import (
	"encoding/binary"
	"math/bits"
)

// Constants of the filters of changed paths (gitformat-commit-graph(5), "Bloom Filter Index", "Bloom Filter Data").
const (
	filterHeader    = 12
	maxFilterHashes = 32
)

// filterKey has the two hashes of a path from which its bits in all filters are computed.
type filterKey struct {
	first, second uint32
	ascii         bool
}

// newFilterKey computes the key of a path without a slash at its end.
func newFilterKey(path string) filterKey {
	k := filterKey{murmur3(0x293ae76f, path), murmur3(0x7e646e2c, path), true}
	for i := range len(path) {
		k.ascii = k.ascii && path[i] < 0x80
	}
	return k
}

// murmur3 is the 32-bit variant of MurmurHash3.
func murmur3(seed uint32, s string) uint32 {
	mix := func(k uint32) uint32 { return bits.RotateLeft32(k*0xcc9e2d51, 15) * 0x1b873593 }
	h, rest := seed, s
	for ; len(rest) >= 4; rest = rest[4:] {
		k := uint32(rest[0]) | uint32(rest[1])<<8 | uint32(rest[2])<<16 | uint32(rest[3])<<24
		h = bits.RotateLeft32(h^mix(k), 13)*5 + 0xe6546b64
	}
	if len(rest) > 0 {
		var k uint32
		for i := range len(rest) {
			k |= uint32(rest[i]) << (8 * i)
		}
		h ^= mix(k)
	}
	h ^= uint32(len(s))
	h = (h ^ h>>16) * 0x85ebca6b
	h = (h ^ h>>13) * 0xc2b2ae35
	return h ^ h>>16
}

// filter is the filter of the paths that differ between a commit and its first parent, with all directories above them.
type filter struct {
	bits            []byte // empty: unknown
	hashes, version uint32
}

// filter returns the filter of a commit. A filter without a single one is that of a commit without changes, or of a
// block that was lost. It counts as unknown.
func (l *layerBytes) filter(pos uint32) (filter, error) {
	if len(l.filters) < filterHeader {
		return filter{}, nil
	}
	f := filter{version: binary.BigEndian.Uint32(l.filters), hashes: binary.BigEndian.Uint32(l.filters[4:])}
	if f.version != 1 && f.version != 2 || f.hashes == 0 || f.hashes > maxFilterHashes {
		return filter{}, nil
	}
	var start uint32
	i := int(pos - l.base)
	if i > 0 {
		start = binary.BigEndian.Uint32(l.filterEnds[4*(i-1):])
	}
	end := binary.BigEndian.Uint32(l.filterEnds[4*i:])
	if start > end || uint64(end) > uint64(len(l.filters)-filterHeader) {
		return filter{}, errBadGraph
	}
	for _, b := range l.filters[filterHeader+start : filterHeader+end] {
		if b != 0 {
			f.bits = l.filters[filterHeader+start : filterHeader+end]
			break
		}
	}
	return f, nil
}

// excludes reports whether a path has certainly not changed. In version 1 the hashes of paths that are not ASCII depend
// on the machine that wrote them.
func (f *filter) excludes(k filterKey) bool {
	if len(f.bits) == 0 || f.version == 1 && !k.ascii {
		return false
	}
	size := uint64(len(f.bits)) * 8
	for i := range f.hashes {
		at := uint64(k.first+i*k.second) % size
		if f.bits[at/8]&(1<<(at%8)) == 0 {
			return true
		}
	}
	return false
}
