package pack

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sort"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// Table is the mapped index of a pack, for callers that handle its entries themselves. An entry is named by its
// position: the rank of its object ID in the index. A Table is valid only inside the callback that it was given to, and
// safe for concurrent use there. A position out of range panics.
type Table struct {
	x *packIndex
	b []byte // the index
}

// Len returns the number of entries.
func (t *Table) Len() int { return t.x.layout.count }

// Find returns the position of a raw object ID of the index's format.
func (t *Table) Find(raw []byte) (pos int, ok bool) {
	l := t.x.layout
	lo, hi := l.fanout.bucket(raw[0])
	if lo == hi {
		return 0, false
	}
	return SearchIDs(t.b, l.ids, l.stride, lo, hi, raw)
}

// ID returns the raw object ID of an entry, which is part of the mapping.
func (t *Table) ID(pos int) []byte {
	l := t.x.layout
	at := l.ids + pos*l.stride
	return t.b[at : at+l.hash : at+l.hash]
}

// Sum returns the checksum of the pack.
func (t *Table) Sum() []byte { return t.b[t.x.layout.end:][:t.x.layout.hash] }

// Offset returns the offset of an entry in the pack. The error is Corrupt.
func (t *Table) Offset(pos int) (int64, error) {
	offset, err := t.x.layout.offset(t.b, pos)
	if err != nil {
		return 0, fault.Wrap(fault.Corrupt, "a pack index is damaged", err)
	}
	return offset, nil
}

// CRC returns the CRC-32 of an entry as it is in the pack. Indexes of version 1 have none.
func (t *Table) CRC(pos int) (crc uint32, ok bool) {
	l := t.x.layout
	if l.version == 1 {
		return 0, false
	}
	return binary.BigEndian.Uint32(t.b[l.off32-4*l.count+4*pos:]), true
}

// Order returns all positions in the order of their offsets. It is sorted once and kept while recently used. The caller
// must not change it. The error is Corrupt.
func (t *Table) Order() ([]uint32, error) { return orders.get(t) }

// Rank returns the rank in Order of the entry that begins at an offset.
func (t *Table) Rank(order []uint32, offset int64) (rank int, ok bool) {
	rank = sort.Search(len(order), func(i int) bool {
		at, err := t.x.layout.offset(t.b, int(order[i]))
		return err != nil || at >= offset
	})
	if rank == len(order) {
		return 0, false
	}
	at, err := t.x.layout.offset(t.b, int(order[rank]))
	return rank, err == nil && at == offset
}

// sortByOffset distributes the positions evenly over the pack, as most entries are, and sorts within each part.
func (t *Table) sortByOffset() ([]uint32, error) {
	n := t.Len()
	offsets, last := make([]int64, n), int64(0)
	for pos := range offsets {
		offset, err := t.Offset(pos)
		if err != nil {
			return nil, err
		}
		offsets[pos], last = offset, max(last, offset)
	}
	parts := n/4 + 1
	part := func(pos uint32) int {
		return min(int(float64(offsets[pos])/(float64(last)+1)*float64(parts)), parts-1) // large ones are rounded
	}
	starts := make([]uint32, parts+1)
	for pos := range n {
		starts[part(uint32(pos))+1]++
	}
	for i := range parts {
		starts[i+1] += starts[i]
	}
	order, next := make([]uint32, n), slices.Clone(starts)
	for pos := range n {
		i := part(uint32(pos))
		order[next[i]] = uint32(pos)
		next[i]++
	}
	for i := range parts {
		slices.SortFunc(order[starts[i]:starts[i+1]], func(a, b uint32) int { return cmp.Compare(offsets[a], offsets[b]) })
	}
	return order, nil
}

// After lists the objects after the first n entries of a pack, by its index. These are the delta bases that git added
// to a thin pack (git-index-pack(1), --fix-thin). The error is Corrupt for an index that cannot be read, or has fewer
// than n objects.
func After(index string, format git.ObjectFormat, n int) (ids []git.ObjectID, err error) {
	x, err := openIdx(index, format)
	if err == nil {
		err = x.file.Do(func(b []byte) error {
			t := Table{x, b}
			if n >= t.Len() {
				if n > t.Len() {
					return errors.New("it has too few objects")
				}
				return nil
			}
			order, err := t.sortByOffset()
			for i := n; i < len(order); i++ {
				ids = append(ids, git.RawObjectID(t.ID(int(order[i]))))
			}
			return err
		})
	}
	if err != nil {
		return nil, fault.Wrap(fault.Corrupt, "the pack's index is damaged", err)
	}
	return ids, nil
}

// orders keeps the orders of recently used indexes: 4 bytes for each object.
var orders = newOrderCache()

// maxOrders is the maximum size of the kept orders in entries, unless a single pack has more.
const maxOrders = 32 << 20

type orderCache struct {
	mu      sync.Mutex
	known   *simplelru.LRU[*packIndex, []uint32]
	entries int
}

func newOrderCache() *orderCache {
	c := &orderCache{}
	c.known, _ = simplelru.NewLRU(math.MaxInt, func(_ *packIndex, order []uint32) { c.entries -= len(order) })
	return c
}

func (c *orderCache) get(t *Table) ([]uint32, error) {
	c.mu.Lock()
	order, ok := c.known.Get(t.x)
	c.mu.Unlock()
	if ok {
		return order, nil
	}
	order, err := t.sortByOffset()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if other, ok := c.known.Get(t.x); ok {
		return other, nil
	}
	c.known.Add(t.x, order)
	for c.entries += len(order); c.entries > maxOrders && c.known.Len() > 1; {
		c.known.RemoveOldest()
	}
	return order, nil
}

// drop forgets the order of an index that is not used any more.
func (c *orderCache) drop(x *packIndex) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.Remove(x)
}

// Index is a mapped pack index outside of a Store. Close it after use.
type Index struct {
	x  *packIndex
	at int
}

// MapIndex maps the pack index that begins at an offset of a file and ends with the file.
func MapIndex(f *os.File, at int64, format git.ObjectFormat) (*Index, error) {
	file, err := disk.Map(f)
	if err != nil {
		return nil, err
	}
	x := &Index{x: &packIndex{file: file}, at: int(at)}
	err = file.Do(func(b []byte) error {
		if at < 0 || at > int64(len(b)) {
			return io.ErrUnexpectedEOF
		}
		x.x.layout, err = parseIdx(b[at:], format)
		return err
	})
	if err != nil {
		return nil, fault.Wrap(fault.Corrupt, "a pack index is damaged", err)
	}
	return x, nil
}

// OpenIndex maps the pack index at a path. The error is Corrupt if it is invalid.
func OpenIndex(path string, format git.ObjectFormat) (*Index, error) {
	f, err := disk.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return MapIndex(f, 0, format)
}

// Do calls fn with the index.
func (x *Index) Do(fn func(t *Table) error) error {
	return x.x.file.Do(func(b []byte) error { return fn(&Table{x.x, b[x.at:]}) })
}

// Close drops the order of the index from memory.
func (x *Index) Close() { orders.drop(x.x) }

// Raw is a pack of a Store, for callers that copy its entries.
type Raw struct {
	Table
	Path string // without ".pack"
	File io.ReaderAt
	End  int64 // offset of the pack's checksum, where the last entry ends
	own  *openPack
}

// Raw calls fn with all packs of the store and its alternates, as they are on the disk now. It verifies the checksum of
// each index once, because a wrong offset would give bitmaps another meaning. Their files stay readable
// until fn returns, also when they are replaced meanwhile. The error is Invalid if there are more than limit packs.
func (s *Store) Raw(limit int, fn func(packs []*Raw) error) error {
	if err := s.Refresh(); err != nil {
		return err
	}
	for range maxLookups - 1 {
		packs, err := s.openRaw(limit)
		if err == nil {
			defer s.releaseRaw(packs)
			return s.mapRaw(packs, 0, fn)
		}
		if err != errGone {
			return err
		}
		if err := s.rescan(true); err != nil {
			return err
		}
	}
	return fault.New(fault.Unavailable, "the repository's packs are being replaced; try again")
}

// openRaw opens all packs and their indexes. The error is errGone if one was replaced.
func (s *Store) openRaw(limit int) (packs []*Raw, err error) {
	defer func() {
		if err != nil {
			s.releaseRaw(packs)
			packs = nil
		}
	}()
	snap := s.snap.Load()
	if len(snap.faults) > 0 {
		return nil, fault.Wrap(fault.Corrupt, "some packs of the repository cannot be read", snap.faults[0])
	}
	for _, d := range snap.dirs {
		for _, p := range d.all {
			if len(packs) == limit {
				return packs, fault.New(fault.Invalid, "the repository has more than %d packs", limit)
			}
			x, err := p.openIndex(s.format)
			if err != nil {
				return packs, err
			}
			o, err := s.files.acquire(p)
			if err != nil {
				if err != errGone && !transient(err) {
					err = damaged(location{p, 0}, err)
				}
				return packs, err
			}
			packs = append(packs, &Raw{Table: Table{x: x}, Path: p.path, File: o.file, End: o.size, own: o})
		}
	}
	return packs, nil
}

// openIndex returns the index of a pack, and maps it if a multi-pack-index covers the pack.
func (p *packFile) openIndex(format git.ObjectFormat) (*packIndex, error) {
	if p.index != nil {
		return p.index, nil
	}
	if x := p.covered.Load(); x != nil {
		return x, nil
	}
	x, err := openIdx(p.path+".idx", format)
	if isAbsent(err) {
		return nil, errGone
	}
	if err != nil {
		if transient(err) {
			return nil, err
		}
		return nil, fault.Wrap(fault.Corrupt, "a pack index is damaged", err)
	}
	if !p.covered.CompareAndSwap(nil, x) {
		x = p.covered.Load()
	}
	return x, nil
}

// mapRaw calls fn inside disk.Mapping.Do of all indexes from the nth on.
func (s *Store) mapRaw(packs []*Raw, n int, fn func([]*Raw) error) error {
	if n == len(packs) {
		return fn(packs)
	}
	x := packs[n].x
	return x.file.Do(func(b []byte) error {
		if !x.whole.Load() {
			if err := verifyIdx(b, s.format); err != nil {
				return fault.Wrap(fault.Corrupt, "a pack index is damaged", fmt.Errorf("%s.idx: %w", packs[n].Path, err))
			}
			x.whole.Store(true)
		}
		packs[n].b = b
		return s.mapRaw(packs, n+1, fn)
	})
}

// verifyIdx compares an index with the checksum at its end.
func verifyIdx(b []byte, format git.ObjectFormat) error {
	h := format.New()
	end := len(b) - format.Size()
	h.Write(b[:end])
	if !bytes.Equal(h.Sum(nil), b[end:]) {
		return errors.New("its checksum is wrong")
	}
	return nil
}

func (s *Store) releaseRaw(packs []*Raw) {
	for _, p := range packs {
		s.files.release(p.own)
	}
}
