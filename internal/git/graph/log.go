package graph

import (
	"context"
	"math"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// logBottom marks the commits that a Log excludes by name. The bit is depthEnd's.
const logBottom uint8 = 1 << 1

// LogOptions selects commits for Log.
type LogOptions struct {
	Exclude     []git.ObjectID // commits reachable from these are not listed
	FirstParent bool           // follow only first parents of listed commits
	Skip, Limit int            // number of commits to skip, and maximum number of commits to list

	// Same reports whether two trees are equal in the relevant part. The zero ID is the empty tree.
	// History is then simplified as by "git log -- path" (git-log(1), "History Simplification", default mode). A commit
	// that equals a parent is not listed. Of a merge that equals a parent only that parent is followed. Nil: all
	// commits are listed.
	Same func(a, b git.ObjectID) (bool, error)

	// Keep reports whether a commit is listed, if it is not omitted for another reason. Nil: all are.
	Keep func(git.ObjectID) (bool, error)

	MaxVisited int // maximum number of commits to visit; beyond it the error is Invalid
}

// Log lists the commits that starts reach, in the default order of git log. The next commit is always the one with the
// latest date among the starts and the parents of earlier commits. With Exclude this is git's search by date, which
// wrong clocks can mislead. Starts that are not commits are ignored.
func (g *Graph) Log(ctx context.Context, starts []git.ObjectID, shallow Commits, o LogOptions) (ids []git.ObjectID,
	err error) {
	err = g.run(ctx, shallow, func(w *walk) error {
		s := selection{w: w, date: math.MaxInt64, log: &o}
		if err := s.start(starts, o.Exclude, false); err != nil {
			return err
		}
		if err := s.run(); err != nil {
			return err
		}
		ids = make([]git.ObjectID, 0, min(o.Limit, len(s.in)))
		skip := o.Skip
		for _, n := range s.in {
			switch {
			case w.has(n, sinceOut):
			case skip > 0:
				skip--
			case len(ids) < o.Limit:
				ids = append(ids, w.id(n))
			}
		}
		return nil
	})
	return ids, err
}

// bottom is the mark of commits that a log excludes by name.
func (s *selection) bottom() uint8 {
	if s.log != nil {
		return logBottom
	}
	return 0
}

func errTooMuchHistory(n int) error {
	return fault.New(fault.Invalid,
		"more than %d commits to visit: exclude older revisions, or request fewer commits", n)
}

// enough reports whether the log is complete before the walk has ended: without exclusions no commit is removed later.
func (s *selection) enough() bool {
	return s.log != nil && !s.limited && len(s.in)-s.log.Skip >= s.log.Limit
}

// keeps reports whether a log lists a commit.
func (s *selection) keeps(n uint32) (bool, error) {
	if s.log == nil || s.log.Keep == nil {
		return true, nil
	}
	return s.log.Keep(s.w.id(n))
}

// followed returns the parents to follow from a listed commit, and whether the commit is omitted as equal to a parent
// (git's try_to_simplify_commit).
func (s *selection) followed(n uint32, parents []uint32) (follow []uint32, same bool, err error) {
	o, relevant := s.log, 0
	if o.FirstParent && len(parents) > 1 {
		if s.relevant(parents[1]) { // git counts it too
			relevant++
		}
		parents = parents[:1]
	}
	if o.Same == nil {
		return parents, false, nil
	}
	w := s.w
	tree := git.RawObjectID(w.rawTree(n))
	if len(parents) == 0 {
		same, err = o.Same(git.ObjectID{}, tree)
		return parents, same, err
	}
	relevantChange, otherChange := false, false
	for i, p := range parents {
		if err := w.load(p); err != nil {
			return nil, false, err
		}
		same, err := o.Same(git.RawObjectID(w.rawTree(p)), tree)
		if err != nil {
			return nil, false, err
		}
		counts := s.relevant(p)
		if counts {
			relevant++
		}
		switch {
		case same && counts:
			return parents[i : i+1], true, nil
		case !same && counts:
			relevantChange = true
		case !same:
			otherChange = true
		}
	}
	if relevant > 0 {
		return parents, !relevantChange, nil
	}
	return parents, !otherChange, nil
}

// relevant is git's relevant_commit: listed commits, and those excluded by name.
func (s *selection) relevant(n uint32) bool { return !s.w.has(n, sinceOut) || s.w.has(n, logBottom) }
