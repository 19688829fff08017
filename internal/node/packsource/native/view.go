package native

import (
	"cmp"
	"slices"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

// source is a pack that entries are copied from: one of the repository, its tip pack, or an earlier one of the Library.
type source struct {
	*pack.Raw
	earlier *earlier // nil: a pack of the repository
}

// view has the sources of one pack, in the order in which objects are looked up and written: earlier packs, the tip
// pack, then the packs of the repository. Of these, the largest comes first. So the bases of deltas in packs of later
// pushes come before the deltas.
type view struct {
	format  git.ObjectFormat
	sources []*source
}

// place is where a view has an object: a source, and a position in its index.
type place struct {
	source int
	pos    int
}

// newView orders the packs of a repository behind the earlier packs.
func newView(format git.ObjectFormat, earlier []*source, packs []*pack.Raw) *view {
	v := &view{format: format, sources: earlier}
	slices.SortFunc(packs, func(a, b *pack.Raw) int {
		return cmp.Or(cmp.Compare(b.Len(), a.Len()), cmp.Compare(a.Path, b.Path))
	})
	for _, p := range packs {
		v.sources = append(v.sources, &source{Raw: p})
	}
	return v
}

// find returns the place of an object, always the same one. An object without a place may be a loose object.
func (v *view) find(raw []byte) (place, bool) { return v.findFrom(0, raw) }

// findFrom returns the first place of an object in a source or a later one.
func (v *view) findFrom(source int, raw []byte) (place, bool) {
	for i := source; i < len(v.sources); i++ {
		if pos, ok := v.sources[i].Find(raw); ok {
			return place{i, pos}, true
		}
	}
	return place{}, false
}

// id returns the raw ID of the object at a place.
func (v *view) id(at place) []byte { return v.sources[at.source].ID(at.pos) }
