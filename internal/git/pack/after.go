package pack

import (
	"cmp"
	"errors"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// After lists the objects after the first n entries of a pack, by its index. These are the delta bases that git added
// to a thin pack (git-index-pack(1), --fix-thin). The error is Corrupt for an index that cannot be read, or has fewer
// than n objects.
func After(index string, format git.ObjectFormat, n int) ([]git.ObjectID, error) {
	x, err := openIdx(index, format)
	if err == nil && n > x.layout.count {
		err = errors.New("it has too few objects")
	}
	if err != nil {
		return nil, fault.Wrap(fault.Corrupt, "the pack's index is damaged", err)
	}
	if n == x.layout.count {
		return nil, nil
	}
	type object struct {
		offset   int64
		position int // in the index
	}
	objects := make([]object, x.layout.count)
	ids := make([]git.ObjectID, 0, x.layout.count-n)
	err = x.file.Do(func(b []byte) error {
		for i := range objects {
			offset, err := x.layout.offset(b, i)
			if err != nil {
				return err
			}
			objects[i] = object{offset, i}
		}
		slices.SortFunc(objects, func(a, b object) int { return cmp.Compare(a.offset, b.offset) })
		for _, o := range objects[n:] {
			at := x.layout.ids + o.position*x.layout.stride
			ids = append(ids, git.RawObjectID(b[at:at+x.layout.hash]))
		}
		return nil
	})
	if err != nil {
		return nil, fault.Wrap(fault.Corrupt, "the pack's index is damaged", err)
	}
	return ids, nil
}
