package native

import (
	"bytes"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

const (
	// similarCommits is the maximum number of commits of a pack for which similar objects are sought.
	similarCommits = 1000
	// similarTrees is the maximum number of trees that are compared for that.
	similarTrees = 20_000
	// similarPairs is the maximum number of pairs that are found, and of those still to be compared.
	similarPairs = 200_000
)

// similar maps objects of a pack to similar ones: the objects at the same path in a commit and in its first parent.
type similar map[git.ObjectID]git.ObjectID

// add records that two objects are similar.
func (m similar) add(a, b git.ObjectID) {
	m[a] = b
	if _, ok := m[b]; !ok {
		m[b] = a
	}
}

// similarWalk compares the trees of commits with those of their first parents.
type similarWalk struct {
	s     *selection
	pairs similar
	seen  map[git.ObjectID]struct{} // trees that were compared
	stack [][2]git.ObjectID         // trees to compare: the new one, and the old one
	buf   []byte
}

// findSimilar finds similar objects for packs of few commits.
func (s *selection) findSimilar(r graph.Range) (similar, error) {
	n := r.Commits.Len()
	if n > similarCommits || n < 2 && len(s.spec.Haves) == 0 || !s.filter.passesAt(0) {
		return nil, nil
	}
	roots := make(map[git.ObjectID]git.ObjectID, n)
	for _, list := range []graph.CommitList{r.Commits, r.Edges} {
		for id, root := range list.All() {
			roots[git.RawObjectID(id)] = git.RawObjectID(root)
		}
	}
	w := &similarWalk{s: s, pairs: similar{}, seen: map[git.ObjectID]struct{}{}}
	for id, root := range r.Commits.All() {
		_, data, err := s.store.Read(git.RawObjectID(id), 0)
		if err == nil {
			err = s.spend(int64(len(data)))
		}
		if err != nil {
			return nil, err
		}
		c, err := pack.ParseCommit(data, s.view.format)
		if err != nil {
			return nil, err
		}
		if len(c.Parents) == 0 {
			continue
		}
		if parent, ok := roots[c.Parents[0]]; ok {
			w.stack = append(w.stack, [2]git.ObjectID{git.RawObjectID(root), parent})
		}
		if err := w.walk(); err != nil {
			return nil, err
		}
	}
	return w.pairs, nil
}

// walk compares the trees on the stack.
func (w *similarWalk) walk() error {
	for len(w.stack) > 0 && len(w.seen) < similarTrees {
		pair := w.stack[len(w.stack)-1]
		w.stack = w.stack[:len(w.stack)-1]
		if _, seen := w.seen[pair[0]]; seen || pair[0] == pair[1] {
			continue
		}
		w.seen[pair[0]] = struct{}{}
		if err := w.s.step(); err != nil {
			return err
		}
		w.pairs.add(pair[0], pair[1])
		if err := w.compare(pair[0], pair[1]); err != nil {
			return err
		}
	}
	return nil
}

// compare compares the entries of two trees.
func (w *similarWalk) compare(newTree, oldTree git.ObjectID) error {
	old, err := w.data(oldTree)
	if err != nil {
		return err
	}
	w.buf = append(w.buf[:0], old...) // it is not valid any more after the next read
	old = w.buf
	data, err := w.data(newTree)
	if err != nil {
		return err
	}
	size := w.s.view.format.Size()
	for len(data) > 0 && len(w.pairs)+len(w.stack) < similarPairs {
		n := entryLength(data, size)
		if n == 0 {
			return errTree()
		}
		entry := data[:n]
		data = data[n:]
		old = after(old, entry, size)
		m := entryLength(old, size)
		if m == 0 || bytes.HasPrefix(old, entry) || entryType(entry) != entryType(old[:m]) ||
			!bytes.Equal(entryName(entry, size), entryName(old[:m], size)) {
			continue
		}
		pair := [2]git.ObjectID{git.RawObjectID(entry[n-size:]), git.RawObjectID(old[m-size : m])}
		switch entryType(entry) {
		case git.Tree:
			w.stack = append(w.stack, pair)
		case git.Blob:
			w.pairs.add(pair[0], pair[1])
		}
	}
	return nil
}

// data reads a tree. It is valid until the next call.
func (w *similarWalk) data(id git.ObjectID) ([]byte, error) {
	at, ok := w.s.view.find(id.Raw())
	if !ok {
		return w.s.trees.looseData(id)
	}
	o, data, err := w.s.trees.packedData(w.s.view.sources[at.source], at.pos)
	if err != nil || o == nil {
		return data, err
	}
	return o.Data, nil
}
