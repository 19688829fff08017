package native

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"sort"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

const (
	// maxDepth is the maximum number of deltas in a chain of a pack, as in git's packs (pack.depth). Clients refuse long
	// chains, and each pack that is composed from an earlier one could make them longer.
	maxDepth = 50
	// maxAhead is the maximum number of entries that are planned before their turn.
	maxAhead = 200_000
	// worthDelta is the minimum size of an entry that could be copied for which a smaller delta is tried, in bytes.
	worthDelta = 16 << 10
)

// deltaBase is an object to which a delta of the new pack refers.
type deltaBase struct {
	depth int   // number of deltas in its chain; 0 if the client has it
	ahead *item // it is written before its turn; nil: it is not
}

// plan decides how an item is written. A base that has its turn later is planned, too.
func (w *writer) plan(it *item) error {
	it.planning = true
	defer func() { it.planning = false }()
	ok, err := w.parse(it)
	if ok && it.entry.IsDelta() {
		it.base, ok = w.baseOf(it)
	}
	switch {
	case err != nil:
	case !ok:
		it.encoded = w.newEncoding(it)
	case w.known != nil && it.end-it.start >= worthDelta && !it.large:
		it.encoded = w.smallerEncoding(it)
	}
	if err == nil && w.sought >= stepsPerTick {
		w.sought = 0
		err = w.tick(0)
	}
	return cmp.Or(err, w.failed)
}

// smallerEncoding returns an encoding of an item that can be copied, if it may become a smaller delta of another
// version.
func (w *writer) smallerEncoding(it *item) *encoding {
	x := &encoding{id: w.objectID(it.place), most: (it.end - it.start) * 3 / 4}
	id, ok := w.versions.first(x.id, func(id git.ObjectID) bool {
		b, ok := w.findWritten(id.Raw())
		x.depth = b.depth + 1
		return ok
	})
	if !ok {
		return nil
	}
	x.base = id
	return x
}

// baseOf returns the base of a delta. ok is false if the delta cannot be copied.
func (w *writer) baseOf(it *item) (b deltaBase, ok bool) {
	if it.entry.Kind == pack.OfsDelta {
		if b.depth, ok = w.depthOf(it.source, it.start-it.entry.Distance); ok {
			return b, b.depth < maxDepth
		}
	}
	raw, ok := w.baseID(it)
	if !ok {
		return b, false
	}
	return w.findBase(raw)
}

// findBase returns an object as the base of an entry. The client has it (thin packs), or it is written before the
// entry, and its chain has room for the entry.
func (w *writer) findBase(raw []byte) (b deltaBase, ok bool) {
	if b, ok = w.findWritten(raw); ok || b.depth >= maxDepth {
		return b, ok
	}
	at, ok := w.view.find(raw)
	if !ok || !w.chosen.has(at) {
		return b, false
	}
	start, err := w.view.sources[at.source].Offset(at.pos)
	if err != nil {
		return b, false
	}
	it := w.ahead[at]
	if it == nil {
		if it = w.inBatch(at.source, start); it == nil {
			it = w.planAhead(at)
		}
	}
	if it == nil || it.planning { // a loop of deltas
		return b, false
	}
	return deltaBase{it.depth(), it}, it.depth() < maxDepth
}

// findWritten is findBase without entries that have their turn later.
func (w *writer) findWritten(raw []byte) (b deltaBase, ok bool) {
	at, ok := w.view.find(raw)
	switch {
	case !ok:
		return b, w.isKnownLoose(raw)
	case !w.chosen.has(at):
		return b, w.hasClient(at)
	}
	start, err := w.view.sources[at.source].Offset(at.pos)
	if err != nil {
		return b, false
	}
	b.depth, ok = w.depthOf(at.source, start)
	return b, ok && b.depth < maxDepth
}

// depthOf returns the number of deltas in the chain of the entry that begins at an offset. ok is false unless it has
// its turn before the item that is planned.
func (w *writer) depthOf(source int, start int64) (depth int, ok bool) {
	if at, ok := w.runs[source].find(start); ok {
		return w.index.depthAt(at), true
	}
	it := w.inBatch(source, start)
	if it == nil || it.planning || len(w.ahead) > 0 && w.ahead[it.place] != nil {
		return 0, false
	}
	return it.depth(), true
}

// inBatch returns the item that begins at an offset, if it is planned or being planned in its turn, or nil.
func (w *writer) inBatch(source int, start int64) *item {
	if source != w.source {
		return nil
	}
	planned := w.items[:min(w.next+1, len(w.items))]
	n := sort.Search(len(planned), func(n int) bool { return planned[n].start >= start })
	if n == len(planned) || planned[n].start != start {
		return nil
	}
	return &planned[n]
}

// planAhead plans an entry before its turn. It returns nil if that is not possible.
func (w *writer) planAhead(at place) *item {
	if w.level == maxDepth || len(w.ahead) == maxAhead || w.failed != nil {
		return nil
	}
	it, err := w.entryAt(at)
	if err != nil {
		return nil
	}
	w.ahead[at] = &it
	w.level++
	err = w.plan(&it)
	w.level--
	it.entry.Base, it.data = bytes.Clone(it.entry.Base), nil // it is kept
	if err != nil {
		w.failed = err
		return nil
	}
	return &it
}

// hasClient reports whether the client surely has the object at a place.
func (w *writer) hasClient(at place) bool {
	return w.known != nil && (w.known.has(at) || w.reached.has(w.view.id(at)))
}

func (w *writer) isKnownLoose(raw []byte) bool {
	return w.known != nil && len(w.known.loose) > 0 && w.known.hasLoose(git.RawObjectID(raw))
}

// headerAt reads the header of the entry at a place, and its offset.
func (w *writer) headerAt(at place) (it item, err error) {
	source := w.view.sources[at.source]
	it.place = at
	if it.start, err = source.Offset(at.pos); err != nil {
		return it, err
	}
	b := make([]byte, pack.MaxEntryHeader)
	n, _ := source.File.ReadAt(b, it.start)
	it.entry, err = pack.ParseEntry(b[:n], w.view.format.Size())
	return it, err
}

// baseID returns the raw ID of a delta's base.
func (w *writer) baseID(it *item) (raw []byte, ok bool) {
	if it.entry.Kind == pack.RefDelta {
		return it.entry.Base, true
	}
	source := w.view.sources[it.source]
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

// newEncoding returns the encoding of an item, if possible as a delta of another version.
func (w *writer) newEncoding(it *item) *encoding {
	x := &encoding{id: w.objectID(it.place)}
	if !it.entry.IsDelta() || it.large {
		return x
	}
	tooDeep := it.base.depth >= maxDepth
	it.base = deltaBase{}
	id, ok := w.versions.first(x.id, func(id git.ObjectID) (ok bool) {
		if w.leadsBack(id.Raw()) {
			return false
		}
		it.base, ok = w.findBase(id.Raw())
		return ok
	})
	if !ok && tooDeep {
		id, it.base, ok = w.ancestor(it)
	}
	if ok {
		x.base, x.depth = id, it.base.depth+1
	} else {
		it.base = deltaBase{}
	}
	return x
}

// leadsBack reports whether the stored deltas of an object lead to one for which a base is sought. Then that one is
// better written as a whole than this one.
func (w *writer) leadsBack(raw []byte) bool {
	for range maxDepth {
		w.sought++
		at, ok := w.view.find(raw)
		if !ok || !w.chosen.has(at) {
			return false
		}
		it, err := w.headerAt(at)
		if err != nil {
			return true
		}
		planned := w.ahead[at]
		if planned == nil {
			planned = w.inBatch(at.source, it.start)
		}
		if planned != nil {
			return planned.planning
		}
		if !it.entry.IsDelta() {
			return false
		}
		if raw, ok = w.baseID(&it); !ok {
			return true
		}
	}
	return true
}

// ancestor returns the least deep of the next objects in the chain of a delta that is too deep. So each later part of a
// long chain is a little shorter, and few objects are encoded as a whole.
func (w *writer) ancestor(it *item) (id git.ObjectID, base deltaBase, found bool) {
	raw, ok := w.baseID(it)
	for n := 0; ok && n <= maxDepth; n++ {
		w.sought++
		if b, ok := w.findWritten(raw); ok && (!found || b.depth < base.depth) {
			id, base, found = git.RawObjectID(raw), b, true
		}
		at, packed := w.view.find(raw)
		if !packed {
			break
		}
		next, err := w.headerAt(at)
		if err != nil || !next.entry.IsDelta() {
			break
		}
		raw, ok = w.baseID(&next)
	}
	return id, base, found
}

// planLoose is plan for a loose object. Those that are bases of others come before them in order.
func (w *writer) planLoose(o *looseObject, order *[]*looseObject, level int) {
	if o.encoded != nil {
		return
	}
	o.encoded = &encoding{id: o.id, depth: maxDepth} // it is too deep for others while its base is sought
	depth := 0
	id, ok := w.versions.first(o.id, func(id git.ObjectID) bool {
		base := w.findLoose(id)
		if base == nil {
			b, ok := w.findBase(id.Raw())
			depth = b.depth
			return ok
		}
		if level < maxDepth {
			w.planLoose(base, order, level+1)
		}
		if base.encoded == nil {
			return false
		}
		depth = base.encoded.depth
		return depth < maxDepth
	})
	if o.encoded.depth = 0; ok {
		o.encoded.base, o.encoded.depth = id, depth+1
	}
	*order = append(*order, o)
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
	if it := w.ahead[at]; it != nil {
		return it.at, it.at > 0
	}
	start, err := w.view.sources[at.source].Offset(at.pos)
	if err != nil {
		return 0, false
	}
	return w.runs[at.source].find(start)
}

// writeAhead writes an entry that was planned before its turn, after its base, unless it is written.
func (w *writer) writeAhead(it *item) error {
	if it.at > 0 {
		return nil
	}
	if it.base.ahead != nil {
		if err := w.writeAhead(it.base.ahead); err != nil {
			return err
		}
	}
	if err := w.flush(); err != nil {
		return err
	}
	w.decide(it)
	it.at = w.out.offset
	if it.encoded != nil {
		return w.writeEncoded(it.encoded)
	}
	if err := w.readEntry(it); err != nil {
		return err
	}
	defer func() { it.data = nil }()
	count, header := w.countCopy(w.view.sources[it.source], it), it.data[:it.entry.Length]
	if it.entry.IsDelta() {
		w.deltas++
		if changed := w.newHeader(it, it.at); changed != nil {
			count.Bytes += int64(len(changed) - len(header))
			header = changed
		}
	}
	return w.copyChanged(it, header)
}

// entryAt reads the entry at a place.
func (w *writer) entryAt(at place) (it item, err error) {
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
	if it, err = source.item(at.source, order, rank, start); err != nil {
		return it, err
	}
	return it, w.readEntry(&it)
}

// readEntry reads an entry, or if it is large, its beginning.
func (w *writer) readEntry(it *item) error {
	source := w.view.sources[it.source]
	it.data, it.large = make([]byte, min(it.end-it.start, blockSize)), it.end-it.start > blockSize
	if _, err := source.File.ReadAt(it.data, it.start); err != nil {
		return fault.Wrap(fault.Internal, "cannot read a pack", fmt.Errorf("%s: %w", source.Path, err))
	}
	return nil
}
