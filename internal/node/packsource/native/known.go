package native

import (
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/bitmap"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

const (
	// maxKnownRoots is the maximum number of the client's root trees that are walked if there are many new commits.
	maxKnownRoots = 64
	// maxReachedCommits is the maximum number of commits between haves and commits with a bitmap.
	maxReachedCommits = 2000
)

// markKnown finds objects that the client surely has, and returns root trees of it. Objects that it does not find are
// sent again.
func (s *selection) markKnown(r graph.Range) (had []git.ObjectID, err error) {
	s.known = s.view.newSet()
	for id, root := range r.Edges.All() {
		s.addTo(s.known, id)
		had = append(had, git.RawObjectID(root))
	}
	var trees [][]byte // to be walked
	for _, id := range s.spec.Haves {
		tree, root, err := s.have(id)
		if err != nil {
			return nil, err
		}
		if root {
			had = append(had, tree)
		} else if !tree.IsZero() {
			trees = append(trees, tree.Raw())
		}
	}
	if err := s.openReached(); err != nil {
		return nil, err
	}
	if !s.comparesTrees(r) && s.filter.passesAt(0) {
		for _, root := range had[:min(len(had), maxKnownRoots)] {
			trees = append(trees, root.Raw())
		}
	}
	if err := s.trees.walkKnown(trees); err != nil {
		return nil, err
	}
	for _, root := range had {
		s.addKnown(git.Tree, root.Raw())
	}
	return had, nil
}

// have adds a have to known, and what its tags lead to. It is ignored if it is missing. It returns the tree that it
// leads to. In a shallow history that is also the root tree of a commit, with root set. The commit may not be an edge,
// because the new history can end above it.
func (s *selection) have(id git.ObjectID) (tree git.ObjectID, root bool, err error) {
	for range maxNestedTags {
		if err := s.step(); err != nil {
			return tree, false, err
		}
		typ, data, err := s.read(id, git.Tag)
		if fault.Is(err, fault.NotFound) {
			return tree, false, nil
		}
		if err != nil {
			return tree, false, err
		}
		if typ != git.Tree {
			s.addTo(s.known, id.Raw())
		}
		switch typ {
		case git.Blob:
			return tree, false, nil
		case git.Tree:
			return id, false, nil
		case git.Commit:
			if len(s.spec.Shallow) == 0 {
				return tree, false, nil
			}
			c, err := s.commit(id)
			if err != nil {
				return tree, false, err
			}
			return c.Tree, true, nil
		}
		if id, _, err = pack.ParseTag(data, s.view.format); err != nil {
			return tree, false, err
		}
	}
	return tree, false, nil
}

// addKnown adds a tree or blob to known unless it is chosen. A tree is not walked any more.
func (s *selection) addKnown(typ git.ObjectType, raw []byte) {
	at, ok := s.view.find(raw)
	if !ok {
		id := git.RawObjectID(raw)
		if s.chosen.hasLoose(id) {
			return
		}
		s.known.addLoose(id)
		if typ == git.Tree {
			s.walked.addLoose(id)
		}
		return
	}
	if s.chosen.has(at) {
		return
	}
	s.known.add(at)
	if typ == git.Tree {
		s.walked.add(at)
	}
}

// reached are the objects that haves reach by a bitmap.
type reached struct {
	bitmap *bitmap.Bitmap
	bits   []uint64
}

// openReached sets s.reached. A shallow client does not have all that its commits reach.
func (s *selection) openReached() error {
	if s.bitmaps == nil || len(s.spec.Shallow) > 0 {
		return nil
	}
	b, _ := s.bitmaps.find(s.ctx, s.view)
	if b == nil {
		return nil
	}
	x, seen := &reached{bitmap: b, bits: make([]uint64, b.Words())}, 0
	stop := func(id []byte) bool {
		if seen++; seen > maxReachedCommits || x.has(id) {
			return true
		}
		ok, err := b.Or(git.RawObjectID(id), x.bits)
		return ok || err != nil // of a damaged bitmap nothing is used
	}
	_, err := s.graph.Between(s.ctx, s.spec.Haves, nil, graph.RangeOptions{Stop: stop, Tick: s.graphTick})
	if err == nil {
		s.reached = x
	} else if !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Corrupt) { // the repository may lack haves
		return err
	}
	return nil
}

// has reports whether haves surely reach an object.
func (r *reached) has(raw []byte) bool { return r != nil && r.bitmap.Has(r.bits, raw) }
