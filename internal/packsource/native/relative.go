package native

import (
	"sort"

	"github.com/packhorse-git/packhorse/internal/git"
)

// maxRelatives is the maximum number of deltas to follow in search of a relative.
const maxRelatives = 10

// relative returns an object that is similar to the nth item, which is a delta whose base is not in the new pack. The
// item is a delta of it through other deltas, or their chains of deltas meet. It is written before the item. The ID is
// zero if there is no such object. So versions of a file that the repository stores as deltas of each other are deltas
// in the new pack too, without a search.
func (w *writer) relative(i, n int) (id git.ObjectID) {
	it := &w.items[n]
	if it.entry.kind != ofsDelta || it.large {
		return id
	}
	if w.family[i] == nil {
		w.family[i] = map[int64]int{}
	}
	family, source := w.family[i], w.view.sources[i]
	order, err := source.Order()
	if err != nil {
		return id
	}
	at, entry := it.start, it.entry
	for range maxRelatives {
		at -= entry.distance
		if pos, ok := family[at]; ok {
			return w.objectID(i, pos)
		}
		if _, written := w.runs[i].find(at); written || w.isEarlierItem(n, at) {
			if rank, ok := source.Rank(order, at); ok {
				return w.objectID(i, int(order[rank]))
			}
		}
		family[at] = it.pos
		var b [maxEntryHeader]byte
		if read, _ := source.File.ReadAt(b[:], at); read == 0 {
			break
		}
		if entry, err = parseEntry(b[:], w.view.format); err != nil || entry.kind != ofsDelta {
			break
		}
	}
	return id
}

// isEarlierItem reports whether an entry begins at an offset that is in the batch before the nth item.
func (w *writer) isEarlierItem(n int, offset int64) bool {
	earlier := w.items[:n]
	at := sort.Search(n, func(i int) bool { return earlier[i].start >= offset })
	return at < n && earlier[at].start == offset
}
