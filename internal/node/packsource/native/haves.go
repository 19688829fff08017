package native

import (
	"cmp"
	"hash/maphash"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

// sparseWalk finds objects that haves reach without reading all their trees. It is git's algorithm for pack.useSparse.
// It compares the trees of the client's commits with those of new commits path by path. It ends where the new commits
// have nothing new. So it misses objects that have moved to another path, which are then sent again.
type sparseWalk struct {
	s       *selection
	loose   []git.ObjectID
	numbers map[git.ObjectID]int // positions in loose
	stack   []pathTrees
	last    []byte // the tree read before

	compared map[uint64]struct{} // hashes of the trees at each path so far: the same trees can be at very many paths
	seed     maphash.Seed
	held     int64 // estimated memory of pathTrees in bytes
}

// pathTrees are the trees at one path.
type pathTrees struct{ had, new []tree }

// Estimated memory in bytes.
const (
	pathMemory  = 250 // of a pathTrees without its trees
	treeMemory  = 32
	looseMemory = 120
)

func newSparseWalk(s *selection) *sparseWalk {
	return &sparseWalk{s: s, numbers: map[git.ObjectID]int{}, compared: map[uint64]struct{}{}, seed: maphash.MakeSeed()}
}

// memory estimates the memory of the walk, which may be nil, in bytes.
func (w *sparseWalk) memory() int64 {
	if w == nil {
		return 0
	}
	return w.held + looseMemory*int64(len(w.loose)) + 32*int64(len(w.compared))
}

// tree is a tree in a source, or a loose one.
type tree struct {
	source int // -1: loose
	offset int64
	pos    int // in the source; of a loose tree in sparseWalk.loose
}

// markKnown adds objects to known that the client surely has.
func (s *selection) markKnown(r graph.Range) error {
	s.known = s.view.newSet()
	w := newSparseWalk(s)
	s.sparse = w
	defer func() { s.sparse = nil }()
	var roots pathTrees
	for id, root := range r.Edges.All() {
		s.addTo(s.known, id)
		if err := w.append(&roots.had, root); err != nil {
			return err
		}
	}
	for _, id := range s.spec.Haves {
		if err := w.have(id, &roots.had); err != nil {
			return err
		}
	}
	for _, t := range roots.had {
		w.addKnown(t)
	}
	for _, root := range r.Commits.All() {
		if s.contains(s.walked, root) {
			continue
		}
		if err := w.append(&roots.new, root); err != nil {
			return err
		}
	}
	w.stack = append(w.stack, roots)
	for len(w.stack) > 0 {
		last := w.stack[len(w.stack)-1]
		w.stack = w.stack[:len(w.stack)-1]
		w.held -= pathMemory + treeMemory*int64(len(last.had)+len(last.new))
		if err := w.compare(last.had, last.new); err != nil {
			return err
		}
	}
	return nil
}

// have adds a have to known, and what its tags lead to. It is ignored if it is missing. In a shallow history the tree
// of a commit is appended to trees, because the commit may not be an edge: the new history can end above it.
func (w *sparseWalk) have(id git.ObjectID, trees *[]tree) error {
	s := w.s
	for range maxNestedTags {
		if err := s.step(); err != nil {
			return err
		}
		typ, data, err := s.read(id, git.Tag)
		if fault.Is(err, fault.NotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		s.addTo(s.known, id.Raw())
		switch typ {
		case git.Blob:
			return nil
		case git.Tree:
			return w.markTree(id.Raw())
		case git.Commit:
			if len(s.spec.Shallow) == 0 {
				return nil
			}
			return w.appendRoot(trees, id)
		}
		if id, _, err = pack.ParseTag(data, s.view.format); err != nil {
			return err
		}
	}
	return nil
}

// appendRoot appends the tree of a commit.
func (w *sparseWalk) appendRoot(trees *[]tree, id git.ObjectID) error {
	_, data, err := w.s.store.Read(id, 0)
	if err != nil {
		return err
	}
	c, err := pack.ParseCommit(data, w.s.view.format)
	if err != nil {
		return err
	}
	return w.append(trees, c.Tree.Raw())
}

func (w *sparseWalk) append(trees *[]tree, raw []byte) error {
	v := w.s.view
	w.held += treeMemory
	at, ok := v.find(raw)
	if !ok {
		id := git.RawObjectID(raw)
		n, known := w.numbers[id]
		if !known {
			n = len(w.loose)
			w.loose, w.numbers[id] = append(w.loose, id), n
		}
		*trees = append(*trees, tree{source: -1, pos: n})
		return nil
	}
	offset, err := v.sources[at.source].Offset(at.pos)
	*trees = append(*trees, tree{at.source, offset, at.pos})
	return err
}

// addKnown adds a tree to known. Its entries are added by the caller.
func (w *sparseWalk) addKnown(t tree) (isNew bool) {
	if t.source < 0 {
		w.s.known.addLoose(w.loose[t.pos])
		return w.s.walked.addLoose(w.loose[t.pos])
	}
	at := place{t.source, t.pos}
	w.s.known.add(at)
	return w.s.walked.add(at)
}

// markTree adds a tree to known, and everything in it.
func (w *sparseWalk) markTree(raw []byte) error {
	var pending []tree
	if err := w.append(&pending, raw); err != nil {
		return err
	}
	for len(pending) > 0 {
		t := pending[len(pending)-1]
		w.held -= treeMemory
		if pending = pending[:len(pending)-1]; !w.addKnown(t) {
			continue
		}
		err := w.read(t, func(typ git.ObjectType, entry, raw []byte) error {
			if typ == git.Tree {
				return w.append(&pending, raw)
			}
			w.s.addTo(w.s.known, raw)
			return nil
		})
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
	}
	return nil
}

// compare adds the entries of the had trees of a path to known, and pushes the paths below it where new trees differ.
func (w *sparseWalk) compare(had, new []tree) error {
	if len(had) == 0 || len(new) == 0 {
		return nil
	}
	had, new = uniqueTrees(had), uniqueTrees(new)
	if w.isCompared(had, new) {
		return nil
	}
	w.last = w.last[:0]
	for _, t := range had {
		if err := w.markEntries(t); err != nil {
			return err
		}
	}
	below, err := w.differences(new)
	if err != nil || len(below) == 0 {
		return err
	}
	size := w.s.view.format.Size()
	w.last = w.last[:0]
	for _, t := range had {
		err := w.readNext(t, func(typ git.ObjectType, entry, raw []byte) error {
			if typ == git.Tree {
				if at, ok := below[string(entryName(entry, size))]; ok {
					return w.append(&at.had, raw)
				}
			}
			return nil
		})
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
	}
	for name, at := range below {
		w.stack = append(w.stack, *at)
		w.held -= int64(len(name))
	}
	return nil
}

// isCompared reports whether the same trees were compared before, and records them. If different trees have the same
// hash, the second ones are not compared, and more than necessary is sent.
func (w *sparseWalk) isCompared(had, new []tree) bool {
	var h maphash.Hash
	h.SetSeed(w.seed)
	for _, list := range [][]tree{had, new} {
		maphash.WriteComparable(&h, len(list))
		for _, t := range list {
			maphash.WriteComparable(&h, t)
		}
	}
	sum := h.Sum64()
	_, compared := w.compared[sum]
	w.compared[sum] = struct{}{}
	return compared
}

// markEntries adds the entries of a tree to known, but those of the tree read before, which are known.
func (w *sparseWalk) markEntries(t tree) error {
	s := w.s
	err := w.readNext(t, func(typ git.ObjectType, entry, raw []byte) error {
		at, ok := s.view.find(raw)
		switch {
		case ok && typ == git.Tree:
			s.walked.add(at)
			s.known.add(at)
		case ok:
			s.known.add(at)
		default:
			id := git.RawObjectID(raw)
			s.known.addLoose(id)
			if typ == git.Tree {
				s.walked.addLoose(id)
			}
		}
		return nil
	})
	if fault.Is(err, fault.NotFound) { // the client has what this repository lacks
		return nil
	}
	return err
}

// differences returns the subtrees of new trees that are not known, by name.
func (w *sparseWalk) differences(new []tree) (map[string]*pathTrees, error) {
	s := w.s
	below, size := map[string]*pathTrees{}, s.view.format.Size()
	w.last = w.last[:0]
	for _, t := range new {
		err := w.readNext(t, func(typ git.ObjectType, entry, raw []byte) error {
			if typ != git.Tree || s.contains(s.walked, raw) {
				return nil
			}
			name := entryName(entry, size)
			at := below[string(name)]
			if at == nil {
				at = &pathTrees{}
				w.held += pathMemory + int64(len(name))
				below[string(name)] = at
			}
			return w.append(&at.new, raw)
		})
		if err != nil {
			return nil, err
		}
	}
	return below, nil
}

// read calls fn for the trees and blobs in a tree.
func (w *sparseWalk) read(t tree, fn eachEntry) error {
	w.last = w.last[:0]
	return w.readNext(t, fn)
}

// readNext calls fn for the trees and blobs in a tree that the tree read before does not have.
func (w *sparseWalk) readNext(t tree, fn eachEntry) error {
	if err := w.s.step(); err != nil {
		return err
	}
	data, err := w.data(t)
	if err != nil {
		return err
	}
	err = newEntries(data, w.last, w.s.view.format.Size(), fn)
	w.last = append(w.last[:0], data...)
	return err
}

// data returns the content of a tree.
func (w *sparseWalk) data(t tree) ([]byte, error) {
	if t.source < 0 {
		return w.s.trees.looseData(w.loose[t.pos])
	}
	o, data, err := w.s.trees.packedData(w.s.view.sources[t.source], t.pos)
	if o != nil {
		data = o.Data
	}
	return data, err
}

// uniqueTrees sorts trees by offset and removes duplicates.
func uniqueTrees(list []tree) []tree {
	slices.SortFunc(list, func(a, b tree) int {
		return cmp.Or(cmp.Compare(a.source, b.source), cmp.Compare(a.offset, b.offset), cmp.Compare(a.pos, b.pos))
	})
	return slices.Compact(list)
}
