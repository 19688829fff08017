package bitmap

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math/bits"
	"path/filepath"
	"slices"
	"sort"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

// index is the pack index or the multi-pack-index that a bitmap belongs to.
type index struct {
	path  string
	pack  *pack.Index
	multi *pack.MultiIndex // nil: of a pack
	count int              // objects
	sum   []byte           // checksum of the pack, or of the multi-pack-index
	packs []string         // without extension
}

// openIdx opens the index of a pack.
func openIdx(base string, format git.ObjectFormat) (*index, error) {
	x := &index{path: base + ".idx", packs: []string{filepath.Base(base)}}
	var err error
	if x.pack, err = pack.OpenIndex(x.path, format); err == nil {
		err = x.pack.Do(func(t *pack.Table) error {
			x.count, x.sum = t.Len(), slices.Clone(t.Sum())
			return nil
		})
	}
	return x, x.opened(err)
}

// openMidx opens the multi-pack-index of a directory. Without an order of bits it has no bitmap: git wrote the order
// into a file of its own before version 2.36.
func openMidx(dir string, format git.ObjectFormat) (*index, error) {
	x := &index{path: filepath.Join(dir, "multi-pack-index")}
	var err error
	if x.multi, err = pack.OpenMulti(x.path, format); err == nil {
		x.count, x.packs = x.multi.Len(), x.multi.Packs()
		err = x.multi.Do(func(t *pack.MultiTable) error {
			if len(t.Ranks()) != 4*x.count {
				return errNoBitmap
			}
			x.sum = slices.Clone(t.Sum())
			return nil
		})
	}
	return x, x.opened(err)
}

// opened adds the path to an error of damage.
func (x *index) opened(err error) error {
	if fault.Is(err, fault.Corrupt) {
		return damaged(x.path, err)
	}
	return err
}

// name returns the entries by the IDs of their commits.
func (x *index) name(entries []entry) (map[git.ObjectID]int32, error) {
	names := make(map[git.ObjectID]int32, len(entries))
	add := func(id func(pos int) []byte) error {
		for i, e := range entries {
			names[git.RawObjectID(id(int(e.position)))] = int32(i)
		}
		if len(names) != len(entries) {
			return errors.New("a commit has two bitmaps")
		}
		return nil
	}
	if x.multi != nil {
		return names, x.multi.Do(func(t *pack.MultiTable) error { return add(t.ID) })
	}
	return names, x.pack.Do(func(t *pack.Table) error { return add(t.ID) })
}

// objects is Bitmap.Objects.
func (x *index) objects(set []uint64, fn func(bit, pack int, offset int64) error) error {
	return x.multi.Do(func(t *pack.MultiTable) error {
		ranks := t.Ranks()
		for i, w := range set {
			for ; w != 0; w &= w - 1 {
				bit := 64*i + bits.TrailingZeros64(w)
				if bit >= x.count {
					return nil
				}
				pos := binary.BigEndian.Uint32(ranks[4*bit:])
				if int64(pos) >= int64(x.count) {
					return damaged(x.path, errors.New("the order of bits has a position beyond the last object"))
				}
				pack, offset, err := t.Entry(int(pos))
				if err != nil {
					return damaged(x.path, err)
				}
				if err := fn(bit, pack, offset); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// bit returns the bit of an object. ok is false if it has none, or if a file is damaged.
func (x *index) bit(raw []byte) (bit int, ok bool) {
	if x.multi != nil {
		_ = x.multi.Do(func(t *pack.MultiTable) error {
			bit, ok = x.multiBit(t, raw)
			return nil
		})
		return bit, ok
	}
	_ = x.pack.Do(func(t *pack.Table) error {
		pos, found := t.Find(raw)
		if !found {
			return nil
		}
		offset, err := t.Offset(pos)
		if err != nil {
			return err
		}
		order, err := t.Order()
		if err != nil {
			return err
		}
		bit, ok = t.Rank(order, offset)
		return nil
	})
	return bit, ok
}

// multiBit searches the bits of a multi-pack-index, which are in the order of packs and offsets. The pack of the first
// bit is the preferred one, which comes before the others.
func (x *index) multiBit(t *pack.MultiTable, raw []byte) (bit int, ok bool) {
	pos, ok := t.Find(raw)
	if !ok {
		return 0, false
	}
	ranks := t.Ranks()
	at := func(bit int) (pos, pack int, offset int64) {
		if pos = int(binary.BigEndian.Uint32(ranks[4*bit:])); pos < x.count {
			pack, offset, _ = t.Entry(pos)
		}
		return pos, pack, offset
	}
	_, preferred, _ := at(0)
	order := func(pack int) int {
		if pack == preferred {
			return -1
		}
		return pack
	}
	pack, offset, err := t.Entry(pos)
	if err != nil {
		return 0, false
	}
	bit = sort.Search(x.count, func(bit int) bool {
		_, p, o := at(bit)
		return cmp.Or(cmp.Compare(order(p), order(pack)), cmp.Compare(o, offset)) >= 0
	})
	if bit == x.count {
		return 0, false
	}
	found, _, _ := at(bit)
	return bit, found == pos
}
