package native

import (
	"errors"
	"math"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Entry types that are not object types (gitformat-pack(5), "Object types").
const (
	ofsDelta = 6
	refDelta = 7
)

// maxEntryHeader is the maximum length of an entry's header: a size, and the base of a delta.
const maxEntryHeader = 10 + 32

var errEntry = errors.New("the entry's header is damaged")

// entryHeader is the header of a pack entry.
type entryHeader struct {
	kind     byte // an object type, ofsDelta or refDelta
	length   int  // of the header
	size     uint64
	distance int64  // ofsDelta: from the base to this entry
	base     []byte // refDelta: raw ID, part of the entry
}

func (e *entryHeader) isDelta() bool { return e.kind == ofsDelta || e.kind == refDelta }

// parseEntry parses the header at the beginning of an entry.
func parseEntry(b []byte, format git.ObjectFormat) (e entryHeader, err error) {
	if len(b) == 0 {
		return e, errEntry
	}
	c := b[0]
	e.kind, e.size = c>>4&7, uint64(c&0xf)
	n := 1
	for shift := 4; c&0x80 != 0; shift += 7 {
		if n == len(b) || shift > 57 {
			return e, errEntry
		}
		c = b[n]
		n++
		e.size |= uint64(c&0x7f) << shift
	}
	switch e.kind {
	case byte(git.Commit), byte(git.Tree), byte(git.Blob), byte(git.Tag):
	case ofsDelta:
		if n == len(b) {
			return e, errEntry
		}
		c = b[n]
		n++
		e.distance = int64(c & 0x7f)
		for c&0x80 != 0 {
			if n == len(b) || e.distance > math.MaxInt64>>8 {
				return e, errEntry
			}
			c = b[n]
			n++
			e.distance = (e.distance+1)<<7 | int64(c&0x7f)
		}
		if e.distance <= 0 {
			return e, errEntry
		}
	case refDelta:
		if len(b) < n+format.Size() {
			return e, errEntry
		}
		e.base = b[n : n+format.Size()]
		n += format.Size()
	default:
		return e, errEntry
	}
	e.length = n
	return e, nil
}

// appendEntry appends the header of an entry, for a delta without its base.
func appendEntry(b []byte, kind byte, size uint64) []byte {
	c := kind<<4 | byte(size&0xf)
	for size >>= 4; size > 0; size >>= 7 {
		b = append(b, c|0x80)
		c = byte(size & 0x7f)
	}
	return append(b, c)
}

// appendDistance appends the distance from a base to its delta.
func appendDistance(b []byte, distance int64) []byte {
	var buf [10]byte
	at := len(buf) - 1
	buf[at] = byte(distance & 0x7f)
	for distance >>= 7; distance > 0; distance >>= 7 {
		distance--
		at--
		buf[at] = 0x80 | byte(distance&0x7f)
	}
	return append(b, buf[at:]...)
}
