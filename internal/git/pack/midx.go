package pack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/mmap"
)

const (
	midxMagic       = 0x4d494458 // "MIDX"
	midxHeader      = 12
	midxChunkEntry  = 12
	midxLargeOffset = 1 << 31
)

// midxLayout is the layout of a multi-pack-index (gitformat-pack, "multi-pack-index (MIDX) files have the following
// format"). Other chunks (RIDX, BTMP and later ones) are ignored.
type midxLayout struct {
	fanout fanout
	count  int
	hash   int
	ids    int      // OIDL
	offs   int      // OOFF: pack number and offset for each ID
	large  int      // LOFF; 0: none
	larges int      // entries of LOFF
	packs  []string // PNAM, without ".idx"; the pack number is the position here
}

type span struct{ at, size int }

func parseMidx(b []byte, format git.ObjectFormat) (*midxLayout, error) {
	l := &midxLayout{hash: format.Size()}
	if len(b) < midxHeader+midxChunkEntry+l.hash || binary.BigEndian.Uint32(b) != midxMagic {
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
	chunks, err := parseChunks(b, int(b[6]), len(b)-l.hash)
	if err != nil {
		return nil, err
	}
	return l, l.place(b, chunks, int64(binary.BigEndian.Uint32(b[8:])))
}

// parseChunks reads the table of contents (gitformat-chunk): IDs with rising offsets, closed by a zero ID.
func parseChunks(b []byte, n, end int) (map[string]span, error) {
	if midxHeader+(n+1)*midxChunkEntry > end {
		return nil, errors.New("the multi-pack-index is too short for its chunk table")
	}
	chunks := make(map[string]span, n)
	for i := range n {
		e := b[midxHeader+i*midxChunkEntry:]
		from, to := binary.BigEndian.Uint64(e[4:]), binary.BigEndian.Uint64(e[4+midxChunkEntry:])
		if from > to || to > uint64(end) {
			return nil, errors.New("the multi-pack-index has a chunk outside the file")
		}
		chunks[string(e[:4])] = span{int(from), int(to - from)}
	}
	return chunks, nil
}

func (l *midxLayout) place(b []byte, chunks map[string]span, packs int64) error {
	fan, names, ids, offs, large := chunks["OIDF"], chunks["PNAM"], chunks["OIDL"], chunks["OOFF"], chunks["LOFF"]
	if fan.size != fanoutSize {
		return errors.New("the multi-pack-index has no fan-out table")
	}
	var err error
	if l.fanout, err = parseFanout(b[fan.at:]); err != nil {
		return err
	}
	n := int64(l.fanout[255])
	if int64(ids.size) != n*int64(l.hash) || int64(offs.size) != 8*n {
		return fmt.Errorf("the multi-pack-index's chunks do not fit %d objects", n)
	}
	l.count, l.ids, l.offs = int(n), ids.at, offs.at
	l.large, l.larges = large.at, large.size/8
	if packs > int64(names.size) {
		return errors.New("the multi-pack-index names fewer packs than it counts")
	}
	rest := b[names.at : names.at+names.size]
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
	file   *mmap.File
	layout *midxLayout
}

func openMidx(path string, format git.ObjectFormat) (*multiIndex, error) {
	file, err := mmap.Open(path)
	if err != nil {
		return nil, err
	}
	m := &multiIndex{file: file}
	err = file.Do(func(b []byte) error {
		var err error
		m.layout, err = parseMidx(b, format)
		return err
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// find returns the pack number and offset of an object's entry. raw has the format's length.
func (m *multiIndex) find(raw []byte) (pack int, offset int64, found bool, err error) {
	lo, hi := m.layout.fanout.bucket(raw[0])
	if lo == hi {
		return 0, 0, false, nil
	}
	err = m.file.Do(func(b []byte) error {
		var position int
		if position, found = searchIDs(b, m.layout.ids, m.layout.hash, lo, hi, raw); !found {
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
