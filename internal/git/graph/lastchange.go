package graph

import (
	"context"
	"slices"

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
	// number.
	Known func(commit git.ObjectID, entries []int32) (known int)
	// Found gets entries whose last change is a commit.
	Found func(commit git.ObjectID, entries []int32)

	// Begin is called when the search begins, maybe once more.
	Begin func()
	// Rest gets commits and entries from which another search can go on, if the context has ended. It may be nil.
	Rest func(commit git.ObjectID, entries []int32)

	MaxVisited int // maximum number of commits to visit; beyond it the error is Invalid
}

// From is a commit to search entries from, by their indexes.
type From struct {
	Commit  git.ObjectID
	Entries []int32
}

// LastChanges finds, for entries of a directory as of commits, the commit that git log -1 lists for their path. History
// is simplified by default (git-log(1)): the way from start leads to the first parent with an equal entry. It ends at
// the first commit that differs from all its parents.
//
// One walk serves all entries, and visits a commit at most once if there are generation numbers. Filters of changed
// paths in the commit-graph save calls of Split. If the commit-graph proves damaged, all is found once more.
func (g *Graph) LastChanges(ctx context.Context, from []From, shallow Commits, o LastChangeOptions) error {
	s := changeSearch{LastChangeOptions: o, dir: newFilterKey(o.Dir), names: make([]filterKey, len(o.Names))}
	for i, name := range o.Names {
		if o.Dir != "" {
			name = o.Dir + "/" + name
		}
		s.names[i] = newFilterKey(name)
	}
	return g.run(ctx, shallow, func(w *walk) error {
		s.walk, s.pending = w, make(map[uint32][]int32)
		o.Begin()
		for _, f := range from {
			n, err := w.start(f.Commit)
			if err != nil {
				return err
			}
			s.follow(n, slices.Clone(f.Entries))
		}
		err := s.run()
		if err != nil && ctx.Err() != nil && o.Rest != nil {
			for n, entries := range s.pending {
				o.Rest(w.id(n), entries)
			}
		}
		return err
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
		err := w.step()
		if err == nil && w.steps > s.MaxVisited {
			return errTooMuchHistory(s.MaxVisited)
		}
		if err == nil {
			entries, err = s.visit(n, entries)
		}
		if err != nil {
			s.follow(n, entries) // for Rest
			return err
		}
	}
	return nil
}

// visit has entries of a commit searched from its parents, or found. It returns the others if it fails.
func (s *changeSearch) visit(n uint32, entries []int32) ([]int32, error) {
	w := s.walk
	if entries = entries[s.Known(w.id(n), entries):]; len(entries) == 0 {
		return nil, nil
	}
	parents, err := w.parents(n)
	if err != nil {
		return entries, err
	}
	w.stack = append(w.stack[:0], parents...)
	for i, p := range w.stack {
		if err := w.load(p); err != nil {
			return entries, err
		}
		same, err := s.split(n, p, i == 0, entries)
		if err != nil {
			return entries, err
		}
		s.follow(p, entries[:same])
		if entries = entries[same:]; len(entries) == 0 {
			return nil, nil
		}
	}
	s.Found(w.id(n), entries)
	return nil, nil
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
