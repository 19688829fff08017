package bitmap

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"path/filepath"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/mmap"
)

const (
	idxMagic   = 0xff744f63 // "\377tOc"; a version 1 index has none
	fanoutSize = 256 * 4
	midxHeader = 12
	chunkRow   = 12
	revHeader  = 12
)

// index is the part in use of the pack index or the multi-pack-index that a bitmap belongs to (gitformat-pack(5)). Its
// sizes were checked.
type index struct {
	file   *mmap.File
	hash   int      // bytes in an object ID
	count  int      // objects
	ids    int      // the first object ID
	stride int      // from one ID to the next
	sum    []byte   // checksum of the pack, or of the multi-pack-index
	packs  []string // without extension

	isMulti bool
	places  span       // OOFF: pack number and offset of each object
	large   span       // LOFF: offsets that need 64 bits
	order   *mmap.File // the file that has the order of bits: the multi-pack-index or its .rev
	ranks   span       // in order: the position of the object of each bit
}

type span struct{ at, size int }

func (s span) in(b []byte) []byte { return b[s.at : s.at+s.size] }

// openIdx opens the index of a pack.
func openIdx(base string, format git.ObjectFormat) (*index, error) {
	file, err := mmap.Open(base + ".idx")
	if err != nil {
		return nil, err
	}
	x := &index{file: file, hash: format.Size(), packs: []string{filepath.Base(base)}}
	if err := file.Do(x.parseIdx); err != nil {
		return nil, damaged(file.Name(), err)
	}
	return x, nil
}

func (x *index) parseIdx(b []byte) error {
	at, perObject := 0, x.hash+4
	x.stride = perObject // version 1: an offset before each ID
	if len(b) >= 8 && binary.BigEndian.Uint32(b) == idxMagic {
		if v := binary.BigEndian.Uint32(b[4:]); v != 2 {
			return fmt.Errorf("pack index version %d is not known", v)
		}
		at, perObject, x.stride = 8, x.hash+8, x.hash
	}
	end := len(b) - 2*x.hash
	if end < at+fanoutSize {
		return errors.New("the pack index is too short")
	}
	n := int64(binary.BigEndian.Uint32(b[at+fanoutSize-4:]))
	at += fanoutSize
	if n*int64(perObject) > int64(end-at) {
		return fmt.Errorf("the pack index is too short for %d objects", n)
	}
	x.count = int(n)
	x.ids = at + x.stride - x.hash
	x.sum = slices.Clone(b[end : end+x.hash])
	return nil
}

// openMidx opens the multi-pack-index of a directory.
func openMidx(dir string, format git.ObjectFormat) (*index, error) {
	file, err := mmap.Open(filepath.Join(dir, "multi-pack-index"))
	if err != nil {
		return nil, err
	}
	x := &index{file: file, hash: format.Size(), stride: format.Size(), isMulti: true}
	if err := file.Do(func(b []byte) error { return x.parseMidx(b, format) }); err != nil {
		return nil, damaged(file.Name(), err)
	}
	return x, nil
}

func (x *index) parseMidx(b []byte, format git.ObjectFormat) error {
	end := len(b) - x.hash
	if end < midxHeader+chunkRow || string(b[:4]) != "MIDX" {
		return errors.New("not a multi-pack-index")
	}
	if b[4] != 1 || b[5] != byte(format) || b[7] != 0 { // 1 is SHA-1, 2 is SHA-256, as in ObjectFormat
		return fmt.Errorf("version %d, object format %d and %d layers below are not known", b[4], b[5], b[7])
	}
	rows := int(b[6])
	if midxHeader+(rows+1)*chunkRow > end {
		return errors.New("the multi-pack-index is too short for its chunk table")
	}
	chunks := map[string]span{}
	for i := range rows {
		row := b[midxHeader+i*chunkRow:]
		from, to := binary.BigEndian.Uint64(row[4:]), binary.BigEndian.Uint64(row[chunkRow+4:])
		if from > to || to > uint64(end) {
			return errors.New("the multi-pack-index has a chunk outside the file")
		}
		chunks[string(row[:4])] = span{int(from), int(to - from)}
	}
	x.sum = slices.Clone(b[end:])
	return x.parseChunks(b, chunks)
}

func (x *index) parseChunks(b []byte, chunks map[string]span) error {
	fan, ids := chunks["OIDF"], chunks["OIDL"]
	if fan.size != fanoutSize {
		return errors.New("the multi-pack-index has no fan-out table")
	}
	n := int64(binary.BigEndian.Uint32(fan.in(b)[fanoutSize-4:]))
	x.places, x.large, x.ranks = chunks["OOFF"], chunks["LOFF"], chunks["RIDX"]
	if int64(ids.size) != n*int64(x.hash) || int64(x.places.size) != 8*n ||
		x.ranks.size != 0 && int64(x.ranks.size) != 4*n {
		return fmt.Errorf("the multi-pack-index's chunks do not fit %d objects", n)
	}
	x.count, x.ids = int(n), ids.at
	names := chunks["PNAM"].in(b)
	packs := binary.BigEndian.Uint32(b[8:])
	if int64(packs) > int64(len(names)) {
		return fmt.Errorf("the multi-pack-index does not have the names of %d packs", packs)
	}
	for range packs {
		name, rest, ok := bytes.Cut(names, []byte{0})
		base, isIdx := strings.CutSuffix(string(name), ".idx")
		if !ok || !isIdx {
			return fmt.Errorf("the multi-pack-index has the bad pack name %.80q", name)
		}
		x.packs, names = append(x.packs, base), rest
	}
	return nil
}

// openOrder finds the order of bits: in the multi-pack-index (RIDX), or in the file beside it that git wrote before
// version 2.36.
func (x *index) openOrder(ctx context.Context, format git.ObjectFormat) error {
	if x.ranks.size > 0 || x.count == 0 {
		x.order = x.file
		return nil
	}
	file, err := mmap.Open(x.beside(".rev"))
	if err != nil {
		return err
	}
	if err := verify(ctx, file, format); err != nil {
		return err
	}
	x.order, x.ranks = file, span{revHeader, 4 * x.count}
	return file.Do(func(b []byte) error {
		switch {
		case int64(len(b)) != revHeader+4*int64(x.count)+2*int64(x.hash), string(b[:8]) != "RIDX\x00\x00\x00\x01",
			binary.BigEndian.Uint32(b[8:]) != uint32(format), !bytes.Equal(b[len(b)-2*x.hash:][:x.hash], x.sum):
			return damaged(file.Name(), errors.New("the reverse index does not belong to the multi-pack-index"))
		}
		return nil
	})
}

// name returns the entries by the IDs of their commits.
func (x *index) name(entries []entry) (map[git.ObjectID]int32, error) {
	names := make(map[git.ObjectID]int32, len(entries))
	err := x.file.Do(func(b []byte) error {
		for i, e := range entries {
			at := x.ids + int(e.position)*x.stride
			names[git.RawObjectID(b[at:at+x.hash])] = int32(i)
		}
		return nil
	})
	if err == nil && len(names) != len(entries) {
		err = errors.New("a commit has two bitmaps")
	}
	return names, err
}

// objects is Bitmap.Objects.
func (x *index) objects(set []uint64, fn func(pack int, offset int64) error) error {
	if x.order == nil {
		panic("bitmap: Objects of the bitmap of a pack")
	}
	return x.order.Do(func(order []byte) error {
		ranks := x.ranks.in(order)
		return x.file.Do(func(b []byte) error {
			for i, w := range set {
				for ; w != 0; w &= w - 1 {
					bit := 64*i + bits.TrailingZeros64(w)
					if bit >= x.count {
						return nil
					}
					pack, offset, err := x.place(b, binary.BigEndian.Uint32(ranks[4*bit:]))
					if err != nil {
						return damaged(x.file.Name(), err)
					}
					if err := fn(pack, offset); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
}

// place returns the pack number and the offset of the object at a position of the multi-pack-index.
func (x *index) place(b []byte, position uint32) (pack int, offset int64, err error) {
	if int64(position) >= int64(x.count) {
		return 0, 0, errors.New("the order of bits has a position beyond the last object")
	}
	row := x.places.in(b)[8*int(position):]
	number, low := binary.BigEndian.Uint32(row), binary.BigEndian.Uint32(row[4:])
	if int64(number) >= int64(len(x.packs)) {
		return 0, 0, errors.New("the multi-pack-index has a pack number out of range")
	}
	if x.large.size == 0 || low&(1<<31) == 0 {
		return int(number), int64(low), nil
	}
	at := 8 * int64(low&^(1<<31))
	if at+8 > int64(x.large.size) {
		return 0, 0, errors.New("the multi-pack-index has a 64-bit offset beyond its table")
	}
	wide := binary.BigEndian.Uint64(x.large.in(b)[at:])
	if wide > math.MaxInt64 {
		return 0, 0, errors.New("the multi-pack-index has an offset beyond 2^63")
	}
	return int(number), int64(wide), nil
}
