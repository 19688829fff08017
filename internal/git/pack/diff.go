package pack

import (
	"encoding/binary"
	"math"
	"math/bits"
)

const (
	diffBlock = 16     // length of the parts of the base that are looked up
	maxCopy   = 0xffff // bytes of one copy instruction
	maxInsert = 0x7f   // bytes of one insert instruction
)

// AppendDelta appends a delta that makes target from base (gitformat-pack(5), "Deltified representation"). It returns
// false if the delta would have more than limit bytes.
func AppendDelta(delta, base, target []byte, limit int) ([]byte, bool) {
	if len(base) < diffBlock || len(base) > math.MaxInt32 || len(target) > math.MaxInt32 {
		return nil, false
	}
	limit += len(delta)
	delta = binary.AppendUvarint(delta, uint64(len(base)))
	delta = binary.AppendUvarint(delta, uint64(len(target)))
	blocks := blocksOf(base)
	done := 0 // bytes of target that are in the delta
	for at := 0; at+diffBlock <= len(target); {
		from := blocks.find(base, target[at:])
		if from < 0 {
			if at++; len(delta)+at-done > limit {
				return nil, false
			}
			continue
		}
		for from > 0 && at > done && base[from-1] == target[at-1] {
			from--
			at--
		}
		n := commonPrefix(base[from:], target[at:])
		delta = appendInserts(delta, target[done:at])
		delta = appendCopies(delta, from, n)
		at += n
		done = at
	}
	delta = appendInserts(delta, target[done:])
	return delta, len(delta) <= limit
}

// blocks finds parts of a base by a hash of their content. If several have the same hash, it finds the first one.
type blocks struct {
	slots []int32 // offset in the base + 1; 0: free
	shift int
}

func blocksOf(base []byte) blocks {
	n := len(base) / diffBlock
	size := bits.Len(uint(2 * n))
	b := blocks{slots: make([]int32, 1<<size), shift: 64 - size}
	for at := (n - 1) * diffBlock; at >= 0; at -= diffBlock {
		b.slots[b.slot(base[at:])] = int32(at + 1)
	}
	return b
}

// slot returns the slot of the first diffBlock bytes of p.
func (b *blocks) slot(p []byte) uint64 {
	const prime1, prime2 = 0x9e3779b185ebca87, 0xc2b2ae3d27d4eb4f
	return (binary.LittleEndian.Uint64(p)*prime1 ^ binary.LittleEndian.Uint64(p[8:])*prime2) * prime1 >> b.shift
}

// find returns the offset in the base of a part that equals the beginning of p, or -1.
func (b *blocks) find(base, p []byte) int {
	at := int(b.slots[b.slot(p)]) - 1
	if at < 0 || binary.LittleEndian.Uint64(base[at:]) != binary.LittleEndian.Uint64(p) ||
		binary.LittleEndian.Uint64(base[at+8:]) != binary.LittleEndian.Uint64(p[8:]) {
		return -1
	}
	return at
}

func commonPrefix(a, b []byte) (n int) {
	for n+8 <= len(a) && n+8 <= len(b) {
		if x := binary.LittleEndian.Uint64(a[n:]) ^ binary.LittleEndian.Uint64(b[n:]); x != 0 {
			return n + bits.TrailingZeros64(x)/8
		}
		n += 8
	}
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func appendInserts(delta, p []byte) []byte {
	for len(p) > 0 {
		n := min(len(p), maxInsert)
		delta = append(append(delta, byte(n)), p[:n]...)
		p = p[n:]
	}
	return delta
}

func appendCopies(delta []byte, from, n int) []byte {
	for n > 0 {
		size := min(n, maxCopy)
		op, at := byte(0x80), len(delta)
		delta = append(delta, 0)
		for i := range 4 {
			if b := byte(from >> (8 * i)); b != 0 {
				delta = append(delta, b)
				op |= 1 << i
			}
		}
		for i := range 2 {
			if b := byte(size >> (8 * i)); b != 0 {
				delta = append(delta, b)
				op |= 0x10 << i
			}
		}
		delta[at] = op
		from, n = from+size, n-size
	}
	return delta
}
