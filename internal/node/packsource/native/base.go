package native

import (
	"fmt"
	"slices"
	"sort"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

// maxDepth is the maximum number of deltas in a chain of a pack, as in git's packs (pack.depth). Clients refuse long
// chains, and each pack that is composed from an earlier one could make them longer.
const maxDepth = 50

// deltaBase is an object to which a delta of the new pack refers.
type deltaBase struct {
	depth int   // number of deltas in its chain; 0 if the client has it
	late  bool  // the writer writes it before its turn
	at    place // if late
}

// baseOf returns the base of a delta in source i. ok is false if the delta cannot be copied.
func (w *writer) baseOf(i int, it *item) (b deltaBase, ok bool) {
	if it.entry.Kind == pack.OfsDelta {
		if b.depth, ok = w.depthOf(i, it.start-it.entry.Distance); ok {
			return b, b.depth < maxDepth
		}
	}
	raw, ok := w.baseID(i, it)
	if !ok {
		return b, false
	}
	return w.findBase(i, it.start, raw)
}

// findBase returns an object as the base of an entry that begins at an offset of source i. The client has it (thin
// packs), or it is written before the entry, and its chain has room for the entry. An object that is not a delta can be
// written before its turn: git appends such bases to the packs of pushes.
func (w *writer) findBase(i int, offset int64, raw []byte) (b deltaBase, ok bool) {
	at, ok := w.view.find(raw)
	switch {
	case !ok:
		return b, w.isKnownLoose(raw)
	case !w.chosen.has(at):
		return b, w.known != nil && w.known.has(at)
	}
	if _, moved := w.moved[at.source][at.pos]; moved {
		return b, true
	}
	start, err := w.view.sources[at.source].Offset(at.pos)
	if err != nil {
		return b, false
	}
	if at.source < i || at.source == i && start < offset {
		b.depth, _ = w.depthOf(at.source, start)
		return b, b.depth < maxDepth
	}
	if _, entry, err := w.entryAt(at); err != nil || entry.IsDelta() {
		return b, false
	}
	return deltaBase{late: true, at: at}, true
}

// depthOf returns the number of deltas in the chain of the entry that begins at an offset of a source. ok is false
// unless it is written or has its turn in the current batch.
func (w *writer) depthOf(source int, start int64) (depth int, ok bool) {
	if at, ok := w.runs[source].find(start); ok {
		return w.index.depthAt(at), true
	}
	n := sort.Search(len(w.items), func(n int) bool { return w.items[n].start >= start })
	if n == len(w.items) || w.items[n].start != start {
		return 0, false
	}
	return w.items[n].depth(), true
}

// entryAt reads the header of the entry at a place, and its offset.
func (w *writer) entryAt(at place) (start int64, e pack.EntryHeader, err error) {
	source := w.view.sources[at.source]
	if start, err = source.Offset(at.pos); err != nil {
		return 0, e, err
	}
	b := make([]byte, pack.MaxEntryHeader)
	n, _ := source.File.ReadAt(b, start)
	e, err = pack.ParseEntry(b[:n], w.view.format.Size())
	return start, e, err
}

func (w *writer) isKnownLoose(raw []byte) bool {
	return w.known != nil && len(w.known.loose) > 0 && w.known.hasLoose(git.RawObjectID(raw))
}

// baseID returns the raw ID of a delta's base.
func (w *writer) baseID(i int, it *item) (raw []byte, ok bool) {
	if it.entry.Kind == pack.RefDelta {
		return it.entry.Base, true
	}
	source := w.view.sources[i]
	order, err := source.Order()
	if err != nil {
		return nil, false
	}
	rank, ok := source.Rank(order, it.start-it.entry.Distance)
	if !ok {
		return nil, false
	}
	return source.ID(int(order[rank])), true
}

// newEncoding returns the encoding of an item, if possible as a delta of a similar object.
func (w *writer) newEncoding(i int, it *item) *encoding {
	x := &encoding{id: w.objectID(i, it.pos)}
	if !it.entry.IsDelta() || it.large {
		return x
	}
	tooDeep := it.base.depth >= maxDepth
	id, ok := w.similar[x.id]
	if ok {
		it.base, ok = w.findBase(i, it.start, id.Raw())
	}
	if !ok && tooDeep {
		id, it.base, ok = w.ancestor(i, it)
	}
	if ok {
		x.base, x.depth = id, it.base.depth+1
	}
	return x
}

// ancestor returns the least deep of the next objects in the chain of a delta that is too deep. So each later part of a
// long chain is a little shorter, and few objects are encoded as a whole.
func (w *writer) ancestor(i int, it *item) (id git.ObjectID, base deltaBase, found bool) {
	raw, ok := w.baseID(i, it)
	for n := 0; ok && n <= maxDepth; n++ {
		if b, ok := w.findBase(i, it.start, raw); ok && !b.late && (!found || b.depth < base.depth) {
			id, base, found = git.RawObjectID(raw), b, true
		}
		at, packed := w.view.find(raw)
		if !packed {
			break
		}
		raw, ok = w.baseAt(at)
	}
	return id, base, found
}

// baseAt returns the raw ID of the base of the entry at a place. ok is false if it is not a delta.
func (w *writer) baseAt(at place) (raw []byte, ok bool) {
	start, entry, err := w.entryAt(at)
	if err != nil || !entry.IsDelta() {
		return nil, false
	}
	return w.baseID(at.source, &item{start: start, entry: entry})
}

// looseEncoding is newEncoding for a loose object. These are written after all others, in the order of their IDs.
func (w *writer) looseEncoding(n int) *encoding {
	o := &w.loose[n]
	x := &encoding{id: o.id}
	id, ok := w.similar[o.id]
	if !ok {
		return x
	}
	var b deltaBase
	if base := w.findLoose(id); base == nil {
		b, ok = w.findBase(len(w.view.sources), 0, id.Raw())
	} else {
		b.depth, ok = base.depth, id.Compare(o.id) < 0 && base.depth < maxDepth
	}
	if ok {
		x.base, x.depth = id, b.depth+1
	}
	o.depth = x.depth
	return x
}

// findLoose returns a chosen loose object, or nil.
func (w *writer) findLoose(id git.ObjectID) *looseObject {
	n, ok := slices.BinarySearchFunc(w.loose, id, func(o looseObject, id git.ObjectID) int { return o.id.Compare(id) })
	if !ok {
		return nil
	}
	return &w.loose[n]
}

// offsetOf returns where an object was written.
func (w *writer) offsetOf(raw []byte) (int64, bool) {
	at, ok := w.view.find(raw)
	if !ok {
		o := w.findLoose(git.RawObjectID(raw))
		if o == nil {
			return 0, false
		}
		return o.at, o.at > 0
	}
	if offset := w.moved[at.source][at.pos]; offset > 0 {
		return offset, true
	}
	start, err := w.view.sources[at.source].Offset(at.pos)
	if err != nil {
		return 0, false
	}
	return w.runs[at.source].find(start)
}

// move records that the entry at a place is written before its turn, at an offset or, if it is 0, later.
func (w *writer) move(at place, offset int64) {
	if w.moved[at.source] == nil {
		w.moved[at.source] = map[int]int64{}
	}
	w.moved[at.source][at.pos] = offset
}

// writeAhead writes an entry that is not a delta before its turn.
func (w *writer) writeAhead(at place) error {
	if err := w.flush(); err != nil {
		return err
	}
	source := w.view.sources[at.source]
	it, err := w.lateItem(at)
	if err != nil {
		return err
	}
	ok, err := w.parse(at.source, &it)
	if err != nil {
		return err
	}
	w.move(at, w.out.offset)
	if !ok || it.entry.IsDelta() {
		return w.writeEncoded(&encoding{id: w.objectID(at.source, at.pos)})
	}
	w.countCopy(source, &it)
	return w.copyChanged(at.source, &it, it.data[:it.entry.Length])
}

// lateItem reads the entry at a place.
func (w *writer) lateItem(at place) (it item, err error) {
	source := w.view.sources[at.source]
	order, err := source.Order()
	if err != nil {
		return it, err
	}
	start, err := source.Offset(at.pos)
	if err != nil {
		return it, err
	}
	rank, ok := source.Rank(order, start)
	if !ok {
		return it, errDamagedIndex(source)
	}
	if it, err = source.item(order, rank, start); err != nil {
		return it, err
	}
	it.data, it.large = make([]byte, min(it.end-start, blockSize)), it.end-start > blockSize
	if _, err := source.File.ReadAt(it.data, start); err != nil {
		return it, fault.Wrap(fault.Internal, "cannot read a pack", fmt.Errorf("%s: %w", source.Path, err))
	}
	return it, nil
}
