package gittest

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"

	"github.com/packhorse-git/packhorse/internal/git"
)

// PackWriter makes packs entry by entry, also such as git would not make. Its methods for entries return their offset.
type PackWriter struct {
	format  git.ObjectFormat
	entries bytes.Buffer
	zlib    *zlib.Writer // of the last entry
	count   uint32
}

// NewPackWriter returns a writer of an empty pack.
func NewPackWriter(format git.ObjectFormat) *PackWriter { return &PackWriter{format: format} }

// Add adds a whole object.
func (w *PackWriter) Add(typ git.ObjectType, data []byte) int64 { return w.entry(byte(typ), nil, data) }

// AddRefDelta adds an object as a delta that names its base by ID.
func (w *PackWriter) AddRefDelta(id git.ObjectID, base, data []byte) int64 {
	return w.entry(refDelta, id.Raw(), delta(base, data))
}

// AddOffsetDelta adds an object as a delta that names its base by offset.
func (w *PackWriter) AddOffsetDelta(at int64, base, data []byte) int64 {
	distance := 12 + int64(w.entries.Len()) - at
	digits := []byte{byte(distance & 0x7f)}
	for distance >>= 7; distance > 0; distance >>= 7 {
		distance--
		digits = append([]byte{0x80 | byte(distance&0x7f)}, digits...)
	}
	return w.entry(offsetDelta, digits, delta(base, data))
}

func (w *PackWriter) entry(typ byte, base, content []byte) int64 {
	at := 12 + int64(w.entries.Len())
	size := len(content)
	head := []byte{typ<<4 | byte(size&0xf)}
	for size >>= 4; size > 0; size >>= 7 {
		head[len(head)-1] |= 0x80
		head = append(head, byte(size&0x7f))
	}
	w.entries.Write(head)
	w.entries.Write(base)
	if w.zlib == nil {
		w.zlib = zlib.NewWriter(&w.entries)
	} else {
		w.zlib.Reset(&w.entries) // a new one takes longer than a small object
	}
	w.zlib.Write(content)
	w.zlib.Close()
	w.count++
	return at
}

// Bytes returns the pack.
func (w *PackWriter) Bytes() []byte {
	b := append([]byte("PACK\x00\x00\x00\x02"), binary.BigEndian.AppendUint32(nil, w.count)...)
	b = append(b, w.entries.Bytes()...)
	h := w.format.New()
	h.Write(b)
	return h.Sum(b)
}

// delta makes data of base: a copy of what both begin with, and the rest as it is.
func delta(base, data []byte) []byte {
	d := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(len(base))), uint64(len(data)))
	n := 0
	for n < min(len(base), len(data), 0xffff) && base[n] == data[n] {
		n++
	}
	if n > 0 {
		d = append(d, 0xb0, byte(n), byte(n>>8)) // copy n bytes from the start
	}
	for rest := data[n:]; len(rest) > 0; {
		k := min(len(rest), 127)
		d = append(append(d, byte(k)), rest[:k]...)
		rest = rest[k:]
	}
	return d
}
