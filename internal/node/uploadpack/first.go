package uploadpack

import (
	"context"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// Limits of the search for wanted trees inside other wanted trees. Beyond them the order is arbitrary.
const (
	maxOrdered      = 10_000   // trees
	maxOrderedBytes = 32 << 20 // of trees; a tree stays in memory while its subtrees are read
)

// orderedObjects lists the blobs and trees that the client wants by ID or by a tag, in the order in which git must
// visit them. A filter does not apply to them (git-rev-list(1), "--filter-provided-objects"). But if git visits a
// wanted blob inside a tree first, it applies the filter and omits the blob. So blobs come before trees, and trees
// before those that contain them. The list is nil without a filter, and if all wants lead to commits, which git visits
// before trees.
func (f *fetch) orderedObjects(ctx context.Context, wants []git.ObjectID, filter string) ([]git.ObjectID, error) {
	if filter == "" {
		return nil, nil
	}
	var blobs, trees []git.ObjectID
	for _, id := range wants {
		peeled, typ, err := f.repo.Graph.Peel(id)
		switch {
		case fault.Is(err, fault.NotFound): // a tag of a missing object, which git reports
		case err != nil:
			return nil, err
		case typ == git.Blob:
			blobs = append(blobs, peeled)
		case typ == git.Tree:
			trees = append(trees, peeled)
		}
	}
	trees = protocol.SortIDs(trees)
	if len(trees) > 1 && omitsTrees(filter) {
		var err error
		if trees, err = f.innerFirst(ctx, trees); err != nil {
			return nil, err
		}
	}
	return append(protocol.SortIDs(blobs), trees...), nil
}

// omitsTrees reports whether a canonical filter may leave out trees.
func omitsTrees(filter string) bool {
	return !strings.HasPrefix(filter, "blob:") && !strings.HasPrefix(filter, "sparse:")
}

// innerFirst orders sorted trees so that each comes before the trees that contain it.
func (f *fetch) innerFirst(ctx context.Context, trees []git.ObjectID) ([]git.ObjectID, error) {
	wanted := make(map[git.ObjectID]bool, len(trees))
	for _, id := range trees {
		wanted[id] = true
	}
	var ordered []git.ObjectID
	seen := make(map[git.ObjectID]bool)
	left := int64(maxOrderedBytes)
	var visit func(id git.ObjectID) error
	visit = func(id git.ObjectID) error {
		if seen[id] || len(seen) >= maxOrdered || left <= 0 || len(ordered) == len(trees) {
			return nil
		}
		seen[id] = true
		if err := ctx.Err(); err != nil {
			return err
		}
		typ, data, err := f.repo.Objects.Read(id, left)
		if left -= int64(len(data)); fault.Is(err, fault.Invalid) { // it exceeds the limit
			left = 0
			return nil
		}
		if err == nil && typ == git.Tree {
			err = pack.Entries(data, f.repo.Format, func(mode uint32, _ []byte, id git.ObjectID) error {
				if mode == pack.ModeTree {
					return visit(id)
				}
				return nil
			})
		}
		if err != nil && !fault.Is(err, fault.NotFound) { // not found: the repository is a partial clone
			return err
		}
		if wanted[id] {
			ordered = append(ordered, id)
			delete(wanted, id)
		}
		return nil
	}
	for _, id := range trees {
		if err := visit(id); err != nil {
			return nil, err
		}
	}
	for _, id := range trees {
		if wanted[id] {
			ordered = append(ordered, id)
		}
	}
	return ordered, nil
}
