package native

import (
	"bytes"
	"math"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

const (
	// maxDiffCommits is the maximum number of commits whose trees are compared with those of their parents. It takes half
	// as long again as to read the trees alone, and is worth it for the versions of files.
	maxDiffCommits = 20_000
	// maxWholeCommits is the same for a whole history, most of which is copied from packs as it is.
	maxWholeCommits = 2000
	// maxOldTrees is the maximum number of older trees with which a new tree is compared.
	maxOldTrees = 8
)

// diffWalk chooses the trees and blobs of few commits. It compares each new tree once with the trees at the same path
// in the parents of its commit. So it finds the new objects, objects that the client surely has, and versions of the
// same file or directory.
//
// An entry that an older tree has, too, is skipped: the client has the older tree, or all of that is chosen already.
// Therefore parents come before their children, whatever their dates are: a tree can be older and newer than another
// one if a change was reverted. An object that the client has at another path is sent again, unless a bitmap has it.
type diffWalk struct {
	s         *selection
	roots     map[git.ObjectID]git.ObjectID // of commits of the pack and of the client
	others    []git.ObjectID                // for commits without parents: the latest of these, and those of the client
	stack     []newTree
	waiting   []git.ObjectID            // commits that are handled next
	unhandled int                       // parents of commits that are read and not handled
	marked    map[git.ObjectID]struct{} // trees of the client whose entries are known
	versions  versions
	olds      []comparedTree // the trees that are compared with a new one now
}

// comparedTree is an old tree that is being compared.
type comparedTree struct {
	rest []byte // its entries that are not compared yet
	at   int    // offset of the new tree until which they are compared
}

// newTree is a tree of the pack to be compared.
type newTree struct {
	id   git.ObjectID
	olds []git.ObjectID
}

// Estimated memory in bytes.
const (
	idMemory      = 33
	newTreeMemory = 64
	oldTreeMemory = 40
	markedMemory  = 80
	versionMemory = 350
)

// memory estimates the memory of the walk, which may be nil, in bytes.
func (w *diffWalk) memory() (n int64) {
	if w == nil {
		return 0
	}
	for _, t := range w.stack {
		n += newTreeMemory + oldTreeMemory*int64(len(t.olds))
	}
	n += idMemory * int64(w.unhandled+cap(w.waiting))
	return n + markedMemory*int64(len(w.marked)) + versionMemory*int64(len(w.versions))
}

// comparesTrees reports whether trees are compared for these commits, rather than read one after the other.
func (s *selection) comparesTrees(r graph.Range) bool {
	most := maxDiffCommits
	if len(s.spec.Haves)+len(s.spec.Shallow) == 0 {
		most = maxWholeCommits
	}
	return r.Commits.Len() <= most && s.filter.depth == math.MaxUint64 && s.filter.passesAt(0)
}

// diff chooses the trees and blobs of commits, and walks the wanted trees.
func (s *selection) diff(r graph.Range, had []git.ObjectID) error {
	w := &diffWalk{s: s, others: had, roots: make(map[git.ObjectID]git.ObjectID, r.Commits.Len()+r.Edges.Len()),
		marked: map[git.ObjectID]struct{}{}, versions: versions{}}
	s.diffs = w
	defer func() { s.diffs = nil }()
	for id, root := range r.Edges.All() {
		w.roots[git.RawObjectID(id)] = git.RawObjectID(root)
	}
	if err := s.trees.walk(); err != nil {
		return err
	}
	commits := make(map[git.ObjectID]*pack.Commit, r.Commits.Len())
	for id := range r.Commits.All() {
		commits[git.RawObjectID(id)] = nil
	}
	for id := range r.Commits.All() {
		if err := w.withParents(git.RawObjectID(id), commits); err != nil {
			return err
		}
	}
	s.versions = w.versions
	return nil
}

// withParents handles a commit, after those of its ancestors that are in commits and not handled. A value of commits is
// nil until the commit is read.
func (w *diffWalk) withParents(id git.ObjectID, commits map[git.ObjectID]*pack.Commit) error {
	for w.waiting = append(w.waiting[:0], id); len(w.waiting) > 0; {
		last := len(w.waiting) - 1
		id := w.waiting[last]
		if c := commits[id]; c != nil {
			w.waiting = w.waiting[:last]
			delete(commits, id)
			w.unhandled -= len(c.Parents)
			if err := w.commit(id, c); err != nil {
				return err
			}
			continue
		}
		if _, done := w.roots[id]; done {
			w.waiting = w.waiting[:last]
			continue
		}
		c, err := w.s.commit(id)
		if err != nil {
			return err
		}
		commits[id] = c
		w.unhandled += len(c.Parents)
		for _, p := range c.Parents {
			if c, ok := commits[p]; ok && c == nil {
				w.waiting = append(w.waiting, p)
			}
		}
	}
	return nil
}

// commit handles a commit whose parents are handled.
func (w *diffWalk) commit(id git.ObjectID, c *pack.Commit) error {
	olds, err := w.parents(c)
	if err == nil {
		w.roots[id] = c.Tree
		err = w.push(c.Tree, olds)
	}
	for err == nil && len(w.stack) > 0 {
		last := w.stack[len(w.stack)-1]
		w.stack = w.stack[:len(w.stack)-1]
		err = w.compare(last)
	}
	if err == nil {
		err = w.s.trees.walk() // trees without an older one
	}
	return err
}

// parents returns the trees with which the root tree of a commit is compared.
func (w *diffWalk) parents(c *pack.Commit) (olds []git.ObjectID, err error) {
	s := w.s
	for _, p := range c.Parents {
		root, ok := w.roots[p]
		if !ok && s.contains(s.walked, p.Raw()) { // the walk of history has stopped there
			parent, err := s.commit(p)
			if err != nil {
				return nil, err
			}
			root, ok = parent.Tree, true
			w.roots[p] = root
		}
		if ok && len(olds) < maxOldTrees {
			olds = append(olds, root)
		}
	}
	if len(olds) == 0 { // a root, or the boundary of a shallow history
		olds = w.others[:min(len(w.others), maxOldTrees)]
		w.others = append([]git.ObjectID{c.Tree}, olds[:min(len(olds), maxOldTrees-1)]...)
	}
	return olds, nil
}

// push chooses a tree, and remembers to compare it with older ones.
func (w *diffWalk) push(id git.ObjectID, olds []git.ObjectID) error {
	s := w.s
	if len(olds) == 0 {
		return s.trees.add(id.Raw())
	}
	for _, old := range olds {
		if old == id {
			return nil
		}
	}
	w.versions.add(id, olds[0])
	if s.trees.choose(id.Raw()) {
		w.stack = append(w.stack, newTree{id, olds})
	}
	return nil
}

// compare handles the entries of a tree.
func (w *diffWalk) compare(t newTree) error {
	s, size := w.s, w.s.view.format.Size()
	if err := s.step(); err != nil {
		return err
	}
	data, err := w.read(t)
	if err != nil {
		return err
	}
	for at := 0; ; {
		if len(w.olds) > 0 {
			at = w.olds[0].pass(data, at, size)
		}
		if at == len(data) {
			return nil
		}
		n := entryLength(data[at:], size)
		if n == 0 {
			return errTree()
		}
		if len(w.olds) > 0 && w.olds[0].skip(data[at:at+n], size) {
			continue
		}
		if err := w.entry(data, at, at+n); err != nil {
			return err
		}
		at += n
	}
}

// pass skips the entries that the tree has in common with a new one from an offset of that on, and returns the offset
// after them.
func (t *comparedTree) pass(data []byte, from, size int) int {
	n := sameEntries(data[from:], t.rest, size)
	t.rest, t.at = t.rest[n:], from+n
	return t.at
}

// skip skips the entries that come before an entry, and reports whether the tree has it.
func (t *comparedTree) skip(entry []byte, size int) bool {
	t.rest = after(t.rest, entry, size)
	return bytes.HasPrefix(t.rest, entry)
}

// seek is pass up to an offset of the new tree, also over entries that the tree does not have.
func (t *comparedTree) seek(data []byte, to, size int) {
	for t.at < to && t.pass(data[:to], t.at, size) < to {
		n := entryLength(data[t.at:to], size) // not 0: these entries were handled
		if !t.skip(data[t.at:t.at+n], size) {
			t.at += n
		}
	}
}

// read reads a tree, and its old trees into w.olds.
func (w *diffWalk) read(t newTree) (data []byte, err error) {
	reader := w.s.trees.reader
	before := reader.Turns
	data, err = w.readAll(t, false)
	if err == nil && reader.Turns > before+1 { // they are too large to be valid together
		data, err = w.readAll(t, true)
	}
	return data, err
}

// readAll is read, but may clone the old trees. It ignores those beyond a limit of memory, except the first one. Those
// that cannot be read are ignored, too: the client has them, or they are read for themselves.
func (w *diffWalk) readAll(t newTree, clone bool) (data []byte, err error) {
	size := 0
	w.olds = w.olds[:0]
	for _, old := range t.olds {
		data, err := w.s.trees.data(old)
		if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Corrupt) {
			continue
		}
		if err == nil {
			err = w.mark(old, data)
		}
		if err != nil {
			return nil, err
		}
		if size += len(data); size > baseMemory && len(w.olds) > 0 {
			continue
		}
		if clone {
			data = bytes.Clone(data)
		}
		w.olds = append(w.olds, comparedTree{rest: data})
	}
	return w.s.trees.data(t.id)
}

// entry handles an entry that the first old tree does not have.
func (w *diffWalk) entry(data []byte, from, to int) error {
	entry, size := data[from:to], w.s.view.format.Size()
	typ := entryType(entry)
	for i := range w.olds[min(1, len(w.olds)):] {
		old := &w.olds[1+i]
		if old.seek(data, from, size); old.skip(entry, size) {
			return nil
		}
	}
	switch typ {
	case 0:
		return errTree()
	case git.Commit:
		return nil
	}
	id, name := git.RawObjectID(entry[len(entry)-size:]), entryName(entry, size)
	var below []git.ObjectID
	for _, old := range w.olds {
		n := entryLength(old.rest, size)
		if n > 0 && entryType(old.rest[:n]) == typ && bytes.Equal(entryName(old.rest[:n], size), name) {
			below = append(below, git.RawObjectID(old.rest[n-size:n]))
		}
	}
	if typ == git.Tree {
		return w.push(id, below)
	}
	if len(below) > 0 {
		w.versions.add(id, below[0])
	}
	return w.s.trees.addBlob(id.Raw())
}

// mark makes the entries of an old tree known if the client has it: all that is in a handled commit is chosen, or the
// client has it.
func (w *diffWalk) mark(id git.ObjectID, data []byte) error {
	s := w.s
	if _, ok := w.marked[id]; ok || s.known == nil || !s.filter.trees || s.contains(s.chosen, id.Raw()) ||
		s.reached.has(id.Raw()) {
		return nil
	}
	w.marked[id] = struct{}{}
	return newEntries(data, nil, s.view.format.Size(), func(typ git.ObjectType, _, raw []byte) error {
		s.addKnown(typ, raw)
		return nil
	})
}

// commit reads a commit.
func (s *selection) commit(id git.ObjectID) (*pack.Commit, error) {
	data, err := s.trees.object(id, git.Commit)
	if err != nil {
		return nil, err
	}
	c, err := pack.ParseCommit(data, s.view.format)
	return &c, err
}

// versions has other versions of objects: those at the same path in a commit and in its parents.
type versions map[git.ObjectID][maxNeighbours]git.ObjectID

const (
	maxVersions   = 200_000 // objects with versions
	maxNeighbours = 6       // versions of an object that are kept
	maxTries      = 40      // versions that are tried as the base of an object
)

// add records two versions.
func (v versions) add(newer, older git.ObjectID) {
	if len(v) < maxVersions {
		v.link(newer, older)
		v.link(older, newer)
	}
}

func (v versions) link(from, to git.ObjectID) {
	list := v[from]
	for i := range list {
		if list[i].IsZero() {
			list[i] = to
			v[from] = list
		}
		if list[i] == to {
			return
		}
	}
}

// first returns the nearest version of an object that fn accepts.
func (v versions) first(id git.ObjectID, fn func(id git.ObjectID) bool) (found git.ObjectID, ok bool) {
	seen := append(make([]git.ObjectID, 0, maxTries+1), id)
	for next := 0; next < len(seen); next++ {
		for _, other := range v[seen[next]] {
			if other.IsZero() || slices.Contains(seen, other) {
				continue
			}
			if fn(other) {
				return other, true
			}
			if seen = append(seen, other); len(seen) > maxTries {
				return git.ObjectID{}, false
			}
		}
	}
	return git.ObjectID{}, false
}
