package graph

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
)

// LastChangeOptions select the entries of a directory for LastChanges. Functions get indexes of Names, which they may
// reorder.
type LastChangeOptions struct {
	Dir   string   // the path of the directory, without a slash at its end; empty: the root
	Names []string // of its entries

	// Split moves the entries that are the same below the root tree of a parent as in the commit to start from to the
	// front, and returns their number. All commits on the way have the same.
	Split func(parent git.ObjectID, entries []int32) (same int, err error)
	// Equal is called with root trees in which the directory is the same. It is not called for the root.
	Equal func(parent, commit git.ObjectID)
	// Known moves the entries whose last changes, as seen from a commit, the caller knows to the front, and returns their
	// number. A call with the commit to start from begins the search, maybe once more.
	Known func(commit git.ObjectID, entries []int32) (known int)
	// Found gets entries whose last change is a commit.
	Found func(commit git.ObjectID, entries []int32)

	MaxVisited int // maximum number of commits to visit; beyond it the error is Invalid
}

// LastChanges finds, for each entry of a directory of a commit, the commit that git log -1 lists for its path. History
// is simplified by default (git-log(1)): the way from start leads to the first parent with an equal entry. It ends at
// the first commit that differs from all its parents.
//
// One walk serves all entries, and visits a commit at most once if there are generation numbers. Filters of changed
// paths in the commit-graph save calls of Split. If the commit-graph proves damaged, all is found once more.
func (g *Graph) LastChanges(ctx context.Context, start git.ObjectID, shallow Commits, o LastChangeOptions) error {
	s := changeSearch{LastChangeOptions: o, dir: newFilterKey(o.Dir), names: make([]filterKey, len(o.Names))}
	for i, name := range o.Names {
		if o.Dir != "" {
			name = o.Dir + "/" + name
		}
		s.names[i] = newFilterKey(name)
	}
	return g.run(ctx, shallow, func(w *walk) error {
		s.walk, s.pending = w, make(map[uint32][]int32)
		n, err := w.start(start)
		if err != nil {
			return err
		}
		all := make([]int32, len(o.Names))
		for i := range all {
			all[i] = int32(i)
		}
		s.follow(n, all)
		return s.run()
	})
}

// changeSearch is the walk of LastChanges.
type changeSearch struct {
	LastChangeOptions
	walk    *walk
	dir     filterKey
	names   []filterKey
	pending map[uint32][]int32 // queued commits with the entries to find from there
}

// follow has entries searched from a loaded commit on.
func (s *changeSearch) follow(n uint32, entries []int32) {
	if len(entries) == 0 {
		return
	}
	others, queued := s.pending[n]
	if !queued {
		s.walk.queue.push(n, s.walk.age(n))
		s.pending[n] = entries[:len(entries):len(entries)]
		return
	}
	s.pending[n] = append(others, entries...)
}

func (s *changeSearch) run() error {
	w := s.walk
	for w.queue.len() > 0 {
		n := w.queue.pop()
		entries := s.pending[n]
		delete(s.pending, n)
		if err := w.step(); err != nil {
			return err
		}
		if w.steps > s.MaxVisited {
			return errTooMuchHistory(s.MaxVisited)
		}
		if entries = entries[s.Known(w.id(n), entries):]; len(entries) == 0 {
			continue
		}
		parents, err := w.parents(n)
		if err != nil {
			return err
		}
		w.stack = append(w.stack[:0], parents...)
		for i, p := range w.stack {
			if err := w.load(p); err != nil {
				return err
			}
			same, err := s.split(n, p, i == 0, entries)
			if err != nil {
				return err
			}
			s.follow(p, entries[:same])
			if entries = entries[same:]; len(entries) == 0 {
				break
			}
		}
		if len(entries) > 0 {
			s.Found(w.id(n), entries)
		}
	}
	return nil
}

// split moves the entries that are the same in a commit and its parent to the front, and returns their number.
func (s *changeSearch) split(n, parent uint32, isFirst bool, entries []int32) (same int, err error) {
	w := s.walk
	tree, before := git.RawObjectID(w.rawTree(n)), git.RawObjectID(w.rawTree(parent))
	if tree == before {
		return len(entries), nil
	}
	if isFirst && w.inGraph(n) {
		f, err := w.layer(n).filter(n)
		if err != nil {
			return 0, err
		}
		if s.Dir != "" && f.excludes(s.dir) {
			s.Equal(before, tree)
			return len(entries), nil
		}
		for i, e := range entries {
			if f.excludes(s.names[e]) {
				entries[i], entries[same] = entries[same], e
				same++
			}
		}
		if same == len(entries) {
			return same, nil
		}
	}
	more, err := s.Split(before, entries[same:])
	return same + more, err
}
