package pack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

const (
	idxMagic   = 0xff744f63 // "\377tOc"; a version 1 index begins with its fan-out table instead
	fanoutSize = 256 * 4
	packHeader = 12
)

// fanout has, for each byte, the number of object IDs whose first byte is at most that. It is copied from the mapping
// to the heap, where it excludes most packs without an object.
type fanout [256]uint32

func parseFanout(b []byte) (f fanout, err error) {
	for i := range f {
		f[i] = binary.BigEndian.Uint32(b[4*i:])
		if i > 0 && f[i] < f[i-1] {
			return f, errors.New("the fan-out table falls")
		}
	}
	return f, nil
}

// bucket is the range of positions of the IDs that begin with first.
func (f *fanout) bucket(first byte) (lo, hi int) {
	if first > 0 {
		lo = int(f[first-1])
	}
	return lo, int(f[first])
}

// idxLayout is the layout of a pack index (gitformat-pack, "Original (version 1) pack-*.idx files" and "Version 2
// pack-*.idx files").
type idxLayout struct {
	fanout  fanout
	version int
	count   int
	hash    int // bytes in an object ID
	ids     int // first object ID; in version 1 each follows its offset
	stride  int // from one ID to the next
	off32   int // version 2: the table of 32-bit offsets
	off64   int // version 2: the table of 64-bit offsets
	end     int // the trailer: the pack's checksum, then the index's
}

// parseIdx checks the header and the sizes of an index. It does not read object IDs or verify checksums.
func parseIdx(b []byte, format git.ObjectFormat) (*idxLayout, error) {
	l := &idxLayout{version: 1, hash: format.Size()}
	if len(b) < fanoutSize+2*l.hash {
		return nil, errors.New("the pack index is too short")
	}
	at := 0
	if binary.BigEndian.Uint32(b) == idxMagic {
		if v := binary.BigEndian.Uint32(b[4:]); v != 2 {
			return nil, fmt.Errorf("pack index version %d is not known", v)
		}
		l.version, at = 2, 8
	}
	if len(b) < at+fanoutSize+2*l.hash {
		return nil, errors.New("the pack index is too short")
	}
	var err error
	if l.fanout, err = parseFanout(b[at:]); err != nil {
		return nil, err
	}
	n := int64(l.fanout[255])
	at += fanoutSize
	l.end = len(b) - 2*l.hash
	size := int64(len(b))
	least := int64(at) + n*int64(l.hash+4) + 2*int64(l.hash)
	most := least
	if l.version == 2 {
		least += 4 * n // CRC-32 of each entry
		most = least + 8*max(n-1, 0)
	}
	if size < least || size > most {
		return nil, fmt.Errorf("the pack index has %d bytes, which does not fit %d objects", size, n)
	}
	l.count = int(n)
	if l.version == 1 {
		l.ids, l.stride = at+4, l.hash+4
		return l, nil
	}
	l.ids, l.stride = at, l.hash
	l.off32 = at + l.count*(l.hash+4)
	l.off64 = l.off32 + 4*l.count
	return l, nil
}

// SearchIDs searches a sorted table of IDs, stride bytes apart, between two positions from the fan-out table. IDs are
// evenly distributed. So it starts near the expected position and doubles its steps, which keeps it within one or two
// pages. A table that was made uneven on purpose costs twice a binary search.
func SearchIDs(b []byte, ids, stride, lo, hi int, id []byte) (int, bool) {
	const near = 4
	key := binary.BigEndian.Uint64(id)
	for step, at := near, guess(lo, hi, id); lo < hi; {
		place := ids + at*stride
		here := binary.BigEndian.Uint64(b[place:])
		before := here < key
		if here == key {
			c := bytes.Compare(b[place+8:place+len(id)], id[8:])
			if c == 0 {
				return at, true
			}
			before = c < 0
		}
		if before {
			lo = at + 1
			at += step
		} else {
			hi = at
			at -= step
		}
		if step *= 2; at < lo || at >= hi {
			at = int(uint(lo+hi) >> 1)
		}
	}
	return 0, false
}

// guess returns the expected position of an ID between two positions, by the bytes after its first.
func guess(lo, hi int, id []byte) int {
	return lo + int(uint64(binary.BigEndian.Uint32(id[1:]))*uint64(hi-lo)>>32)
}

// offset returns the offset in the pack of the object at a position.
func (l *idxLayout) offset(b []byte, position int) (int64, error) {
	if l.version == 1 {
		return int64(binary.BigEndian.Uint32(b[l.ids+position*l.stride-4:])), nil
	}
	v := binary.BigEndian.Uint32(b[l.off32+4*position:])
	if v&(1<<31) == 0 {
		return int64(v), nil
	}
	at := int64(l.off64) + 8*int64(v&^(1<<31))
	if at+8 > int64(l.end) {
		return 0, errors.New("the pack index has a 64-bit offset beyond its table")
	}
	return wideOffset(b[at:])
}

func wideOffset(b []byte) (int64, error) {
	v := binary.BigEndian.Uint64(b)
	if v > math.MaxInt64 {
		return 0, errors.New("the pack index has an offset beyond 2^63")
	}
	return int64(v), nil
}

// packIndex is one mapped .idx file. It is immutable.
type packIndex struct {
	file   *disk.Mapping
	layout *idxLayout
	sum    []byte // checksum of the pack it belongs to

	whole atomic.Bool // the index has the checksum at its end
}

func openIdx(path string, format git.ObjectFormat) (*packIndex, error) {
	file, err := disk.MapFile(path)
	if err != nil {
		return nil, err
	}
	x := &packIndex{file: file}
	err = file.Do(func(b []byte) error {
		var err error
		if x.layout, err = parseIdx(b, format); err != nil {
			return err
		}
		x.sum = slices.Clone(b[x.layout.end : x.layout.end+x.layout.hash])
		return nil
	})
	if err != nil {
		return nil, err
	}
	return x, nil
}

// find returns the offset of an object's entry in the pack. raw has the format's length.
func (x *packIndex) find(raw []byte) (offset int64, found bool, err error) {
	lo, hi := x.layout.fanout.bucket(raw[0])
	if lo == hi {
		return 0, false, nil
	}
	err = x.file.Do(func(b []byte) error {
		var position int
		if position, found = SearchIDs(b, x.layout.ids, x.layout.stride, lo, hi, raw); !found {
			return nil
		}
		var err error
		offset, err = x.layout.offset(b, position)
		return err
	})
	return offset, found && err == nil, err
}

// idAt finds the object whose entry begins at offset. It scans the whole index, and is used only for repair.
func (x *packIndex) idAt(offset int64) (id git.ObjectID, found bool, err error) {
	err = x.file.Do(func(b []byte) error {
		for i := range x.layout.count {
			if o, err := x.layout.offset(b, i); err == nil && o == offset {
				at := x.layout.ids + i*x.layout.stride
				id, found = git.RawObjectID(b[at:at+x.layout.hash]), true
				return nil
			}
		}
		return nil
	})
	return id, found, err
}
