package pack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

const (
	midxMagic       = 0x4d494458 // "MIDX"
	midxHeader      = 12
	midxLargeOffset = 1 << 31
)

// midxLayout is the layout of a multi-pack-index (gitformat-pack, "multi-pack-index (MIDX) files have the following
// format"). Other chunks are ignored.
type midxLayout struct {
	fanout fanout
	count  int
	hash   int
	ids    int      // OIDL
	offs   int      // OOFF: pack number and offset for each ID
	large  int      // LOFF; 0: none
	larges int      // entries of LOFF
	ranks  Span     // RIDX: the position of the object of each bit of a bitmap; empty: none
	packs  []string // PNAM, without ".idx"; the pack number is the position here
}

// Span is a part of a file.
type Span struct{ At, Size int }

// In returns the part of the bytes of the file.
func (s Span) In(b []byte) []byte { return b[s.At : s.At+s.Size : s.At+s.Size] }

func parseMidx(b []byte, format git.ObjectFormat) (*midxLayout, error) {
	l := &midxLayout{hash: format.Size()}
	if len(b) < midxHeader+l.hash || binary.BigEndian.Uint32(b) != midxMagic {
		return nil, errors.New("not a multi-pack-index")
	}
	if b[4] != 1 {
		return nil, fmt.Errorf("multi-pack-index version %d is not known", b[4])
	}
	if b[5] != byte(format) { // 1 is SHA-1, 2 is SHA-256, as in ObjectFormat
		return nil, errors.New("the multi-pack-index is of another object format")
	}
	if b[7] != 0 {
		return nil, errors.New("the multi-pack-index builds on others")
	}
	chunks, err := ParseChunks(b, midxHeader, int(b[6]), len(b)-l.hash)
	if err != nil {
		return nil, fmt.Errorf("the multi-pack-index is damaged: %w", err)
	}
	return l, l.place(b, chunks, int64(binary.BigEndian.Uint32(b[8:])))
}

// ParseChunks reads a table of n chunks (gitformat-chunk(5)), which begins at an offset of a file: names with rising
// offsets. The chunks end before end.
func ParseChunks(b []byte, at, n, end int) (map[string]Span, error) {
	const row = 12
	if at+(n+1)*row > end {
		return nil, fmt.Errorf("it is too short for its table of %d chunks", n)
	}
	chunks := make(map[string]Span, n)
	for i := range n {
		e := b[at+i*row:]
		from, to := binary.BigEndian.Uint64(e[4:]), binary.BigEndian.Uint64(e[4+row:])
		if from > to || to > uint64(end) {
			return nil, fmt.Errorf("chunk %d is out of order or outside the file", i)
		}
		chunks[string(e[:4])] = Span{int(from), int(to - from)}
	}
	return chunks, nil
}

func (l *midxLayout) place(b []byte, chunks map[string]Span, packs int64) error {
	fan, names, ids, offs, large := chunks["OIDF"], chunks["PNAM"], chunks["OIDL"], chunks["OOFF"], chunks["LOFF"]
	l.ranks = chunks["RIDX"]
	if fan.Size != fanoutSize {
		return errors.New("the multi-pack-index has no fan-out table")
	}
	var err error
	if l.fanout, err = parseFanout(b[fan.At:]); err != nil {
		return err
	}
	n := int64(l.fanout[255])
	if int64(ids.Size) != n*int64(l.hash) || int64(offs.Size) != 8*n ||
		l.ranks.Size != 0 && int64(l.ranks.Size) != 4*n {
		return fmt.Errorf("the multi-pack-index's chunks do not fit %d objects", n)
	}
	l.count, l.ids, l.offs = int(n), ids.At, offs.At
	l.large, l.larges = large.At, large.Size/8
	if packs > int64(names.Size) {
		return errors.New("the multi-pack-index names fewer packs than it counts")
	}
	rest := names.In(b)
	l.packs = make([]string, 0, packs)
	for range packs {
		name, after, ok := bytes.Cut(rest, []byte{0})
		base, isIdx := strings.CutSuffix(string(name), ".idx")
		if !isIdx {
			base, isIdx = strings.CutSuffix(string(name), ".pack")
		}
		if !ok || !isIdx || base == "" || strings.ContainsRune(base, '/') {
			return errors.New("the multi-pack-index has a bad pack name")
		}
		l.packs = append(l.packs, base)
		rest = after
	}
	return nil
}

// entry reads the pack number and offset at a position.
func (l *midxLayout) entry(b []byte, position int) (pack int, offset int64, err error) {
	e := b[l.offs+8*position:]
	pack = int(binary.BigEndian.Uint32(e))
	if pack >= len(l.packs) {
		return 0, 0, errors.New("the multi-pack-index has a pack number out of range")
	}
	v := binary.BigEndian.Uint32(e[4:])
	if l.large == 0 || v&midxLargeOffset == 0 {
		return pack, int64(v), nil
	}
	i := int(v &^ midxLargeOffset)
	if i >= l.larges {
		return 0, 0, errors.New("the multi-pack-index has a 64-bit offset beyond its table")
	}
	offset, err = wideOffset(b[l.large+8*i:])
	return pack, offset, err
}

// multiIndex is one mapped multi-pack-index. It is immutable.
type multiIndex struct {
	file   *disk.Mapping
	layout *midxLayout
}

func openMidx(path string, format git.ObjectFormat) (*multiIndex, error) {
	file, err := disk.MapFile(path)
	if err != nil {
		return nil, err
	}
	m := &multiIndex{file: file}
	err = file.Do(func(b []byte) error {
		m.layout, err = parseMidx(b, format)
		return err
	})
	return m, err
}

// find returns the pack number and offset of an object's entry. raw has the format's length.
func (m *multiIndex) find(raw []byte) (pack int, offset int64, found bool, err error) {
	err = m.file.Do(func(b []byte) error {
		var position int
		if position, found = (&MultiTable{m.layout, b}).Find(raw); !found {
			return nil
		}
		var err error
		pack, offset, err = m.layout.entry(b, position)
		return err
	})
	return pack, offset, found && err == nil, err
}

// idAt finds the object whose entry begins at offset of a pack. It scans the index, and is used only for repair.
func (m *multiIndex) idAt(pack int, offset int64) (id git.ObjectID, found bool, err error) {
	err = m.file.Do(func(b []byte) error {
		for i := range m.layout.count {
			if p, o, err := m.layout.entry(b, i); err == nil && p == pack && o == offset {
				at := m.layout.ids + i*m.layout.hash
				id, found = git.RawObjectID(b[at:at+m.layout.hash]), true
				return nil
			}
		}
		return nil
	})
	return id, found, err
}

// MultiIndex is a mapped multi-pack-index outside of a Store.
type MultiIndex struct{ x *multiIndex }

// OpenMulti maps the multi-pack-index at a path. The error is Corrupt if it is invalid.
func OpenMulti(path string, format git.ObjectFormat) (*MultiIndex, error) {
	x, err := openMidx(path, format)
	if x != nil {
		err = fault.Wrap(fault.Corrupt, "a multi-pack-index is damaged", err)
	}
	return &MultiIndex{x}, err
}

// File returns the mapping.
func (m *MultiIndex) File() *disk.Mapping { return m.x.file }

// Packs returns the names of the packs without an extension.
func (m *MultiIndex) Packs() []string { return m.x.layout.packs }

// Len returns the number of objects.
func (m *MultiIndex) Len() int { return m.x.layout.count }

// Do calls fn with the content.
func (m *MultiIndex) Do(fn func(t *MultiTable) error) error {
	return m.x.file.Do(func(b []byte) error { return fn(&MultiTable{m.x.layout, b}) })
}

// MultiTable is the content of a MultiIndex. It is valid only inside the callback that it was given to. A position out
// of range panics.
type MultiTable struct {
	l *midxLayout
	b []byte
}

// ID returns the raw object ID at a position.
func (t *MultiTable) ID(pos int) []byte { return t.b[t.l.ids+pos*t.l.hash:][:t.l.hash] }

// Find returns the position of a raw object ID of the index's format.
func (t *MultiTable) Find(raw []byte) (pos int, ok bool) {
	lo, hi := t.l.fanout.bucket(raw[0])
	if lo == hi {
		return 0, false
	}
	return SearchIDs(t.b, t.l.ids, t.l.hash, lo, hi, raw)
}

// Entry returns the pack number and the offset of the object at a position.
func (t *MultiTable) Entry(pos int) (pack int, offset int64, err error) { return t.l.entry(t.b, pos) }

// Ranks returns the position of the object of each bit of a bitmap, four bytes for each. It is empty if the file has no
// such chunk.
func (t *MultiTable) Ranks() []byte { return t.l.ranks.In(t.b) }

// Sum returns the checksum of the file.
func (t *MultiTable) Sum() []byte { return t.b[len(t.b)-t.l.hash:] }
