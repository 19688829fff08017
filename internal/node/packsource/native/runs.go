package native

import "sort"

// runs maps offsets in a source to offsets in the new pack, for entries that were written. Each run has the same
// difference. Runs are added in the order of the source's offsets.
type runs struct {
	list []run
	last int // of the last look-up
}

type run struct {
	start, end int64 // in the source
	shift      int64 // to the new pack
}

// add records that the entry from start to end was written at an offset of the new pack.
func (r *runs) add(start, end, at int64) {
	if n := len(r.list); n > 0 && r.list[n-1].end == start && r.list[n-1].shift == at-start {
		r.list[n-1].end = end
		return
	}
	r.list = append(r.list, run{start, end, at - start})
}

// find returns the new offset of the entry that began at an offset of the source.
func (r *runs) find(start int64) (at int64, ok bool) {
	if r.last < len(r.list) {
		if last := &r.list[r.last]; last.start <= start && start < last.end {
			return start + last.shift, true
		}
	}
	i := sort.Search(len(r.list), func(i int) bool { return r.list[i].end > start })
	if i == len(r.list) || r.list[i].start > start {
		return 0, false
	}
	r.last = i
	return start + r.list[i].shift, true
}
