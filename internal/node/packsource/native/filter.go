package native

import (
	"math"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// filter is the filter of a Spec (git-rev-list(1), --filter). It does not apply to wants and to what their tags lead
// to.
type filter struct {
	spec string

	commits, trees, blobs bool // whether objects of a type pass

	limit uint64 // size of the smallest blobs that do not pass; MaxUint64: all pass
	depth uint64 // trees and blobs at this depth below a root tree, which is at 0, do not pass; MaxUint64: all pass
}

// parse reads a canonical specification.
func (f *filter) parse(spec string) error {
	*f = filter{spec: spec, commits: true, trees: true, blobs: true, limit: math.MaxUint64, depth: math.MaxUint64}
	if spec == "" {
		return nil
	}
	parsed, err := protocol.ParseFilter(spec, protocol.Limits{})
	if err != nil {
		return &fallback{reasonFilter, err}
	}
	return f.add(parsed)
}

// add adds a filter that objects have to pass as well.
func (f *filter) add(p *protocol.Filter) error {
	switch p.Kind {
	case protocol.FilterBlobNone:
		f.blobs = false
	case protocol.FilterBlobLimit:
		f.limit = min(f.limit, p.Limit)
		f.blobs = f.blobs && p.Limit > 0
	case protocol.FilterTree:
		f.depth = min(f.depth, p.Limit)
	case protocol.FilterType:
		f.commits = f.commits && p.Type == git.Commit
		f.trees = f.trees && p.Type == git.Tree
		f.blobs = f.blobs && p.Type == git.Blob
	case protocol.FilterCombine:
		for _, sub := range p.Sub {
			if err := f.add(sub); err != nil {
				return err
			}
		}
	case protocol.FilterSparse:
		return &fallback{reason: reasonFilter} // git evaluates patterns of paths
	}
	return nil
}

// passesAt reports whether trees, or blobs in them, may pass at a depth.
func (f *filter) passesAt(depth uint64) bool { return (f.trees || f.blobs) && depth < f.depth }
