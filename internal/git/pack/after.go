package pack

import (
	"cmp"
	"container/heap"
	"errors"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// After lists the objects that a pack has behind its first n entries, by the pack's index: what git adds to a pack
// whose deltas are against objects that it has not, it adds at the end (git-index-pack(1), --fix-thin). Memory is by
// what is listed. The error is Corrupt for an index that cannot be read, or that has fewer than n.
func After(index string, format git.ObjectFormat, n int) ([]git.ObjectID, error) {
	x, err := openIdx(index, format)
	if err != nil {
		return nil, fault.Wrap(fault.Corrupt, "the pack's index is damaged", err)
	}
	if n > x.layout.count {
		return nil, fault.Wrap(fault.Corrupt, "the pack's index is damaged", errors.New("it has too few objects"))
	}
	if n == x.layout.count {
		return nil, nil
	}
	last := make(entries, 0, x.layout.count-n+1)
	err = x.file.Do(func(b []byte) error {
		for i := range x.layout.count {
			offset, err := x.layout.offset(b, i)
			if err != nil {
				return err
			}
			if len(last) == x.layout.count-n && offset < last[0].offset {
				continue
			}
			if heap.Push(&last, placed{offset, i}); len(last) > x.layout.count-n {
				heap.Pop(&last)
			}
		}
		return nil
	})
	ids := make([]git.ObjectID, 0, len(last))
	if err == nil {
		err = x.file.Do(func(b []byte) error {
			for _, p := range last {
				at := x.layout.ids + p.position*x.layout.stride
				ids = append(ids, git.RawObjectID(b[at:at+x.layout.hash]))
			}
			return nil
		})
	}
	if err != nil {
		return nil, fault.Wrap(fault.Corrupt, "the pack's index is damaged", err)
	}
	return ids, nil
}

// placed is where an object stands in a pack, and in its index.
type placed struct {
	offset   int64
	position int
}

// entries is a heap, the first entry of the pack on top.
type entries []placed

func (e entries) Len() int           { return len(e) }
func (e entries) Less(i, j int) bool { return cmp.Less(e[i].offset, e[j].offset) }
func (e entries) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *entries) Push(p any)        { *e = append(*e, p.(placed)) }
func (e *entries) Pop() any {
	all := *e
	p := all[len(all)-1]
	*e = all[:len(all)-1]
	return p
}
