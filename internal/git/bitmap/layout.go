package bitmap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Constants of gitformat-bitmap(5), "On-disk format".
const (
	headerSize = 12 // then the checksum of what the bitmap belongs to
	types      = 4

	fullClosure  = 0x1 // BITMAP_OPT_FULL_DAG; there is no other kind
	nameHashes   = 0x4
	lookupTable  = 0x10
	pseudoMerges = 0x20

	lookupRow    = 16
	entryHeader  = 6 // position in the index, XOR offset, flags
	maxXorOffset = 160
)

var errShort = errors.New("the file is too short for its extensions")

// layout has the places of the bitmaps in a file. Its numbers were checked.
type layout struct {
	types   [types]int // commits, trees, blobs, tags
	entries []entry
}

// entry is the bitmap of a commit.
type entry struct {
	at       int    // of its EWAH bitmap
	position uint32 // of the commit in the index
	xor      int32  // position in layout.entries of the earlier bitmap that it is a difference from; negative: none
}

// parse reads a bitmap file of count objects. sum is the checksum of what it has to belong to.
func parse(b []byte, count int, sum []byte) (*layout, error) {
	if len(b) < headerSize+2*len(sum) || string(b[:4]) != "BITM" {
		return nil, errors.New("not a bitmap")
	}
	if v := binary.BigEndian.Uint16(b[4:]); v != 1 {
		return nil, fmt.Errorf("version %d is not known", v)
	}
	if !bytes.Equal(b[headerSize:headerSize+len(sum)], sum) {
		return nil, errors.New("the bitmap belongs to another pack or multi-pack-index")
	}
	n := binary.BigEndian.Uint32(b[8:])
	if int64(n) > int64(min(count, maxCommits)) {
		return nil, fmt.Errorf("%d commits with a bitmap are too many", n)
	}
	end, err := parseExtensions(b, count, int(n), headerSize+len(sum))
	if err != nil {
		return nil, err
	}
	b = b[:end]
	l := &layout{}
	at := headerSize + len(sum)
	for i := range l.types {
		l.types[i] = at
		e, err := ewahAt(b, at)
		if err != nil {
			return nil, err
		}
		at = e.end
	}
	return l, l.parseEntries(b, at, int(n), count)
}

// parseExtensions returns where the entries end at the latest. The extensions follow them, and their sizes are known
// from the end of the file.
func parseExtensions(b []byte, count, n, header int) (end int, err error) {
	flags := binary.BigEndian.Uint16(b[6:])
	if flags&fullClosure == 0 || flags&^(fullClosure|nameHashes|lookupTable|pseudoMerges) != 0 {
		return 0, fmt.Errorf("flags %#x are not known", flags)
	}
	left := int64(len(b) - 2*header + headerSize) // without the header and the checksum at the end
	if flags&nameHashes != 0 {
		left -= 4 * int64(count)
	}
	if flags&lookupTable != 0 {
		left -= lookupRow * int64(n)
	}
	if flags&pseudoMerges != 0 {
		if left < 8 {
			return 0, errShort
		}
		size := binary.BigEndian.Uint64(b[int64(header)+left-8:])
		if size > uint64(left) {
			return 0, errShort
		}
		left -= int64(size)
	}
	if left < 0 {
		return 0, errShort
	}
	return header + int(left), nil
}

// parseEntries finds the n bitmaps of commits, which begin at a place.
func (l *layout) parseEntries(b []byte, at, n, count int) error {
	if n > (len(b)-at)/(entryHeader+ewahSize) {
		return fmt.Errorf("the file is too short for the bitmaps of %d commits", n)
	}
	l.entries = make([]entry, n)
	for i := range l.entries {
		if len(b)-at < entryHeader {
			return errors.New("a bitmap is truncated")
		}
		x := entry{at: at + entryHeader, position: binary.BigEndian.Uint32(b[at:]), xor: -1}
		if int64(x.position) >= int64(count) {
			return fmt.Errorf("position %d of a commit is beyond the last object", x.position)
		}
		if back := int(b[at+4]); back != 0 {
			if back > maxXorOffset || back > i {
				return fmt.Errorf("bitmap %d is a difference from the bitmap %d before it", i, back)
			}
			x.xor = int32(i - back)
		}
		e, err := ewahAt(b, x.at)
		if err != nil {
			return err
		}
		l.entries[i], at = x, e.end
	}
	return nil
}

// xorCommit changes the bits of to that the i-th entry has. Each entry of the chain is an earlier one, so it ends.
func (l *layout) xorCommit(b []byte, i int, to []uint64) error {
	for ; i >= 0; i = int(l.entries[i].xor) {
		e, err := ewahAt(b, l.entries[i].at)
		if err != nil {
			return err
		}
		if err := e.xor(to); err != nil {
			return err
		}
	}
	return nil
}

func (l *layout) xorType(b []byte, t git.ObjectType, to []uint64) error {
	e, err := ewahAt(b, l.types[t-git.Commit])
	if err != nil {
		return err
	}
	return e.xor(to)
}
