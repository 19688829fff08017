package native

import (
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

const (
	blockSize = 1 << 20  // bytes of a source that are read at a time, and the maximum size of entries in a batch
	maxGap    = 16 << 10 // bytes between two entries that are read rather than skipped
)

// writer writes the chosen objects: those of each source in the order of their offsets, then the loose ones.
//
// Entries are copied unless they are deltas without a usable base (findBase). As in git's packs, each base in the pack
// comes before its deltas, because some clients read a pack in one pass. Deltas therefore make no loop, even if the
// packs of the repository have the same objects with different deltas.
type writer struct {
	spec     *packsource.Spec
	view     *view
	chosen   *objectSet
	known    *objectSet // objects of the client; nil: none
	reached  *reached   // more of them; nil: unknown
	versions versions
	out      *framed
	index    indexTable
	runs     []runs          // by source
	ahead    map[place]*item // entries that are planned, and perhaps written, before their turn
	loose    []looseObject   // in the order of their IDs
	encoder  *encoder
	made     *packsource.Made
	deltas   int // copied entries that are deltas

	newDeltas int // encoded ones
	tick      func(objects int) error
	log       *slog.Logger

	block    []byte
	source   int    // of the items
	items    []item // the batch
	next     int    // the item that is planned now; those before it are planned
	level    int    // of plans ahead that wait for others
	sought   int    // objects that were looked up for bases since the last tick
	failed   error  // of a plan ahead; no other begins
	from, to int    // unchanged entries in the block that are not written yet
	header   []byte
}

// item is an entry of a batch, or one that is planned before its turn.
type item struct {
	place
	start, end int64 // in the source
	crc        uint32
	hasCRC     bool
	data       []byte // part of the block
	entry      pack.EntryHeader
	base       deltaBase // if the object becomes a delta
	encoded    *encoding // nil: the entry is copied
	large      bool      // data is only the beginning of the entry
	planning   bool      // bases are sought for it
	at         int64     // its offset in the new pack, if it is planned before its turn; 0: not written yet
}

// depth returns the maximum number of deltas in the chain of the item.
func (it *item) depth() int {
	depth := 0
	if it.entry.IsDelta() && (it.encoded == nil || it.encoded.most > 0) {
		depth = it.base.depth + 1
	}
	if it.encoded != nil {
		depth = max(depth, it.encoded.depth)
	}
	return depth
}

// looseObject is a chosen object that is in no source.
type looseObject struct {
	id      git.ObjectID
	at      int64     // its offset in the new pack; 0: not written yet
	encoded *encoding // nil: not planned yet
}

func newWriter(spec *packsource.Spec, v *view, chosen, known *objectSet) *writer {
	return &writer{spec: spec, view: v, chosen: chosen, known: known, runs: make([]runs, len(v.sources)),
		ahead: map[place]*item{}}
}

// write writes the whole pack.
func (w *writer) write(objects int) error {
	w.block, w.header = make([]byte, blockSize), make([]byte, 0, pack.MaxEntryHeader)
	w.index = newIndexTable(w.view.format, objects)
	if err := w.out.begin(objects); err != nil {
		return err
	}
	for i := range w.view.sources {
		if err := w.copySource(i); err != nil {
			return err
		}
	}
	if err := w.writeLoose(); err != nil {
		return err
	}
	sum, err := w.out.finish()
	w.index.sum = sum
	return err
}

// writeLoose writes the objects that are in no source, each after its base. It starts to encode some before it writes
// those before them.
func (w *writer) writeLoose() error {
	for _, id := range w.chosen.looseIDs() {
		w.loose = append(w.loose, looseObject{id: id})
	}
	order := make([]*looseObject, 0, len(w.loose))
	for n := range w.loose {
		w.planLoose(&w.loose[n], &order, 0)
		if err := w.tick(0); err != nil {
			return err
		}
	}
	next := 0
	for n, o := range order {
		for ; next < len(order) && next <= n+w.encoder.ahead; next++ {
			w.encoder.begin(order[next].encoded)
		}
		o.at = w.out.offset
		if err := w.writeEncoded(o.encoded); err != nil {
			return err
		}
		if err := w.tick(1); err != nil {
			return err
		}
	}
	return nil
}

// copySource writes the objects that have their place in a source.
func (w *writer) copySource(i int) error {
	if w.chosen.count(i) == 0 {
		return nil
	}
	w.source = i
	source := w.view.sources[i]
	order, err := source.Order()
	if err != nil {
		return err
	}
	each := w.chosen.byRank(i, order)
	rank, ok := each()
	last, end := -1, int64(0) // the rank before, and the end of its entry
	for ok {
		w.items = w.items[:0]
		for ok {
			if rank != last+1 {
				end = 0
			}
			it, err := source.item(i, order, rank, end)
			if err != nil {
				return err
			}
			if n := len(w.items); n > 0 && (it.end-w.items[0].start > blockSize || it.start-w.items[n-1].end > maxGap) {
				break
			}
			w.items = append(w.items, it)
			last, end = rank, it.end
			rank, ok = each()
		}
		if err := w.batch(); err != nil {
			return err
		}
		if err := w.tick(len(w.items)); err != nil {
			return err
		}
	}
	return nil
}

// item returns the entry at a rank of the source, which has a number. start is its offset, or 0 if it is not known.
func (s *source) item(number int, order []uint32, rank int, start int64) (it item, err error) {
	it = item{place: place{number, int(order[rank])}, start: start, end: s.End}
	if start == 0 {
		it.start, err = s.Offset(it.pos)
	}
	if err == nil && rank+1 < len(order) {
		it.end, err = s.Offset(int(order[rank+1]))
	}
	if err == nil && (it.end <= it.start || it.end > s.End) {
		err = errDamagedIndex(s)
	}
	it.crc, it.hasCRC = s.CRC(it.pos)
	return it, err
}

func errDamagedIndex(s *source) error {
	return fault.Wrap(fault.Corrupt, "a pack index is damaged", errors.New(s.Path))
}

// batch writes the items, which are neighbours. It starts to encode some objects before it writes those before them.
func (w *writer) batch() error {
	source := w.view.sources[w.source]
	first, last := &w.items[0], &w.items[len(w.items)-1]
	block := w.block[:min(last.end-first.start, blockSize)]
	if _, err := source.File.ReadAt(block, first.start); err != nil {
		return fault.Wrap(fault.Internal, "cannot read a pack", fmt.Errorf("%s: %w", source.Path, err))
	}
	for n := range w.items {
		it := &w.items[n]
		it.large = it.end-first.start > blockSize
		it.data = block[it.start-first.start : min(it.end-first.start, blockSize)]
	}
	for w.next = range w.items {
		it := &w.items[w.next]
		if w.ahead[it.place] == nil {
			if err := w.plan(it); err != nil {
				return err
			}
		}
	}
	w.next = len(w.items)
	begun, next := 0, 0
	for n := range w.items {
		for ; next < len(w.items) && (begun < w.encoder.ahead || next <= n); next++ {
			if x := w.items[next].encoded; x != nil {
				w.encoder.begin(x)
				begun++
			}
		}
		if w.items[n].encoded != nil {
			begun--
		}
		if err := w.item(&w.items[n]); err != nil {
			return err
		}
	}
	return w.flush()
}

func (w *writer) objectID(at place) git.ObjectID { return git.RawObjectID(w.view.id(at)) }

// parse parses the header of an item, and reports whether its entry is intact. Damage is logged: another copy is
// encoded.
func (w *writer) parse(it *item) (bool, error) {
	source := w.view.sources[it.source]
	if !it.hasCRC {
		return false, nil
	}
	sum := crc32.ChecksumIEEE(it.data)
	err := w.rest(it, func(b []byte) error {
		sum = crc32.Update(sum, crc32.IEEETable, b)
		return nil
	})
	if it.large {
		if err := w.tick(0); err != nil { // otherwise the end of the pack would look like damage
			return false, err
		}
	}
	if err == nil && sum != it.crc {
		err = errors.New("its CRC-32 is wrong")
	} else if err == nil {
		it.entry, err = pack.ParseEntry(it.data, w.view.format.Size())
	}
	if err != nil {
		w.log.Error("damaged pack entry", "path", source.Path, "object", w.objectID(it.place).String())
		return false, nil
	}
	return true, nil
}

// rest calls fn with the part of a large entry that is not in the block.
func (w *writer) rest(it *item, fn func(b []byte) error) error {
	if !it.large {
		return nil
	}
	source, b := w.view.sources[it.source], make([]byte, blockSize)
	for at := it.start + int64(len(it.data)); at < it.end; {
		n, err := source.File.ReadAt(b[:min(it.end-at, blockSize)], at)
		if n == 0 {
			return err
		}
		if err := fn(b[:n]); err != nil {
			return err
		}
		at += int64(n)
		if err := w.tick(0); err != nil {
			return err
		}
	}
	return nil
}

// item writes one item of the batch, after the base that it needs.
func (w *writer) item(it *item) error {
	if early := w.ahead[it.place]; early != nil {
		return w.writeAhead(early)
	}
	if it.base.ahead != nil {
		if err := w.writeAhead(it.base.ahead); err != nil {
			return err
		}
	}
	source := w.view.sources[it.source]
	at := w.out.offset + int64(w.to-w.from)
	w.runs[it.source].add(it.start, it.end, at)
	w.decide(it)
	if it.encoded != nil {
		if err := w.flush(); err != nil {
			return err
		}
		return w.writeEncoded(it.encoded)
	}
	count := w.countCopy(source, it)
	if it.entry.IsDelta() {
		w.deltas++
		if header := w.newHeader(it, at); header != nil {
			count.Bytes += int64(len(header) - it.entry.Length)
			return w.copyChanged(it, header)
		}
	}
	if it.large {
		return w.copyChanged(it, it.data[:it.entry.Length])
	}
	w.index.add(source.ID(it.pos), it.crc, at, it.depth())
	begin := int(it.start - w.items[0].start)
	if w.to != begin {
		if err := w.flush(); err != nil {
			return err
		}
		w.from = begin
	}
	w.to = begin + len(it.data)
	return nil
}

// decide waits for an encoding of an entry that can be copied, and drops it if it is not smaller.
func (w *writer) decide(it *item) {
	x := it.encoded
	if x != nil && x.most > 0 && (w.encoder.wait(x) != nil || x.deflate == nil) {
		it.encoded = nil
	}
}

// countCopy counts an entry that is copied without changes, and returns the count.
func (w *writer) countCopy(source *source, it *item) *packsource.Count {
	count := &w.made.ReusedDisk
	if source.earlier != nil {
		count = &w.made.ReusedCache
	}
	count.Objects++
	count.Bytes += it.end - it.start
	return count
}

// flush writes the unchanged entries that were collected.
func (w *writer) flush() error {
	from, to := w.from, w.to
	w.from, w.to = 0, 0
	if from == to {
		return nil
	}
	return w.out.write(w.block[from:to])
}

// newHeader returns the header of a delta that is written at an offset, or nil if it is unchanged.
func (w *writer) newHeader(it *item, at int64) []byte {
	base, written := int64(0), false
	if it.entry.Kind == pack.OfsDelta {
		base, written = w.runs[it.source].find(it.start - it.entry.Distance)
		if written && w.spec.Offset && at-base == it.entry.Distance {
			return nil
		}
	}
	var raw []byte
	if !written || !w.spec.Offset {
		if raw, _ = w.baseID(it); !written {
			base, written = w.offsetOf(raw)
		}
	}
	if written && w.spec.Offset {
		return appendDistance(appendEntry(w.header[:0], pack.OfsDelta, it.entry.Size), at-base)
	}
	if it.entry.Kind == pack.RefDelta {
		return nil
	}
	return append(appendEntry(w.header[:0], pack.RefDelta, it.entry.Size), raw...)
}

// copyChanged writes an entry with another header, or a large one.
func (w *writer) copyChanged(it *item, header []byte) error {
	if err := w.flush(); err != nil {
		return err
	}
	source, at := w.view.sources[it.source], w.out.offset
	sum, crc := it.crc, crc32.ChecksumIEEE(header)
	if it.large || it.at > 0 { // it was read again since the comparison
		sum = crc32.ChecksumIEEE(it.data)
	}
	write := func(b []byte) error {
		crc = crc32.Update(crc, crc32.IEEETable, b)
		return w.out.write(b)
	}
	err := w.out.write(header)
	if err == nil {
		err = write(it.data[it.entry.Length:])
	}
	if err == nil {
		err = w.rest(it, func(b []byte) error {
			sum = crc32.Update(sum, crc32.IEEETable, b)
			return write(b)
		})
	}
	if err != nil {
		return err
	}
	if sum != it.crc {
		return fault.Wrap(fault.Corrupt, "the pack could not be made: object "+w.objectID(it.place).String()+
			" is damaged in the repository on the server; tell its administrator", errors.New(source.Path))
	}
	w.index.add(source.ID(it.pos), crc, at, it.depth())
	return nil
}
