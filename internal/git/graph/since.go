package graph

import (
	"context"
	"math"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// Marks of Since, which also uses depthEnd and depthInner.
const (
	sinceSeen     uint8 = 1 << 0
	sinceParsed   uint8 = 1 << 3
	sinceExpanded uint8 = 1 << 4
	sinceOut      uint8 = 1 << 5 // not selected, nor are its ancestors
	sinceQueued   uint8 = 1 << 6
)

// sincePatience is the number of commits that git visits after the last selectable one.
const sincePatience = 5 // SLOP in git

// Since implements "deepen-since" and "deepen-not" (gitprotocol-v2, "fetch"). History is the selection of `git rev-list
// --max-age=since wants --not not`. A boundary is a selected commit with a parent that is not selected. A since of 0
// means no limit. If no commit is selected, the error is of kind Invalid.
//
// With since alone, a commit is selected if a path of young commits leads to it. With not, a commit that is too old
// hides its ancestors, even younger ones, as far as the search visits them. Both are git's own searches by date, step
// by step, so that wrong clocks have the same effect. There is one difference: a selected commit of serverShallow is a
// boundary. Git does not report it, and its clients then have a broken history.
func (g *Graph) Since(ctx context.Context, wants []git.ObjectID, since int64, not []git.ObjectID,
	serverShallow, clientShallow Commits) (Boundary, error) {
	var b Boundary
	err := g.run(ctx, serverShallow, func(w *walk) error {
		s := selection{w: w, since: since, date: math.MaxInt64}
		if err := s.markParsed(clientShallow); err != nil {
			return err
		}
		if err := s.start(wants, not, false); err != nil {
			return err
		}
		if err := s.run(); err != nil {
			return err
		}
		ends, err := s.ends()
		if err != nil {
			return err
		}
		b = w.boundary(ends, clientShallow)
		return nil
	})
	if err != nil {
		return Boundary{}, err
	}
	return b, nil
}

type selection struct {
	w       *walk
	since   int64
	limited bool     // something is excluded by name
	in      []uint32 // selected when they were visited; some may have got the mark sinceOut later
	date    int64    // of the last commit in it
	open    int      // queued commits that are not out

	log *LogOptions // nil: no log, all parents are followed
}

// markParsed marks the client's shallow commits as parsed, because git has parsed them. Git excludes the ancestors of
// parsed commits at once.
func (s *selection) markParsed(clientShallow Commits) error {
	for id := range clientShallow {
		n, ok, err := s.w.commit(id)
		switch {
		case fault.Is(err, fault.NotFound):
		case err != nil:
			return err
		case ok:
			s.w.mark(n, sinceParsed)
		}
	}
	return nil
}

// start queues the named commits by date: first the excluded ones, then the wants.
func (s *selection) start(wants, not []git.ObjectID, missingOK bool) error {
	w := s.w
	out, err := w.peelCommits(not, missingOK)
	if err != nil {
		return err
	}
	in, err := w.peelCommits(wants, false)
	if err != nil {
		return err
	}
	s.limited = len(out) > 0
	for _, n := range append(out, in...) {
		w.mark(n, sinceParsed)
	}
	for _, n := range out {
		w.mark(n, sinceOut|s.bottom())
		if err := s.excludeParents(n); err != nil {
			return err
		}
	}
	for _, n := range append(out, in...) {
		s.push(n)
	}
	return nil
}

// push queues a commit that was not seen yet.
func (s *selection) push(n uint32) {
	w := s.w
	if !w.visit(n, sinceSeen) {
		return
	}
	w.mark(n, sinceQueued)
	if !w.has(n, sinceOut) {
		s.open++
	}
	w.queue.push(n, uint64(w.date(n)))
}

// exclude marks one commit as out.
func (s *selection) exclude(n uint32) {
	if s.w.visit(n, sinceOut) && s.w.has(n, sinceQueued) {
		s.open--
	}
}

// excludeParents marks the visited ancestors of a commit as out.
func (s *selection) excludeParents(n uint32) error {
	w := s.w
	pending := []uint32{n}
	for len(pending) > 0 {
		n := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		if !w.has(n, sinceParsed) {
			continue
		}
		parents, err := w.parents(n)
		if err != nil {
			return err
		}
		for _, p := range parents {
			if !w.has(p, sinceOut) {
				s.exclude(p)
				pending = append(pending, p)
			}
		}
	}
	return nil
}

func (s *selection) run() error {
	w := s.w
	patience := sincePatience
	for w.queue.len() > 0 {
		n := w.queue.pop()
		if !w.has(n, sinceOut) {
			s.open--
		}
		w.unmark(n, sinceQueued)
		if err := w.step(); err != nil {
			return err
		}
		if s.log != nil && w.steps > s.log.MaxVisited {
			return errTooMuchHistory(s.log.MaxVisited)
		}
		date := w.date(n)
		if s.since != 0 && date < s.since {
			if !s.limited {
				continue
			}
			w.mark(n, sinceOut)
		}
		same, err := s.expand(n)
		if err != nil {
			return err
		}
		if !w.has(n, sinceOut) {
			s.date = date
			keep := !same
			if keep {
				if keep, err = s.keeps(n); err != nil {
					return err
				}
			}
			if keep {
				s.in = append(s.in, n)
			}
			if s.enough() {
				return nil
			}
			continue
		}
		if err := s.excludeParents(n); err != nil {
			return err
		}
		if w.queue.len() == 0 {
			return nil
		}
		if s.date <= w.date(w.queue.items[0].node) || s.open > 0 {
			patience = sincePatience
		} else if patience--; patience == 0 {
			return nil
		}
	}
	return nil
}

// expand queues a commit's parents. If the commit is out, its parents and their visited ancestors become out. same
// reports whether a log omits the commit.
func (s *selection) expand(n uint32) (same bool, err error) {
	w := s.w
	if !w.visit(n, sinceExpanded) {
		return false, nil
	}
	out := w.has(n, sinceOut)
	parents, err := w.parents(n)
	if err != nil {
		return false, err
	}
	w.stack = append(w.stack[:0], parents...)
	follow := w.stack
	if s.log != nil && !out {
		if follow, same, err = s.followed(n, follow); err != nil {
			return false, err
		}
	}
	for _, p := range follow {
		if err := w.load(p); err != nil {
			return false, err
		}
		w.mark(p, sinceParsed)
		if out {
			s.exclude(p)
			if err := s.excludeParents(p); err != nil {
				return false, err
			}
		}
		s.push(p)
	}
	return same, nil
}

// ends marks the selected commits, and returns those with a parent that is not selected.
func (s *selection) ends() ([]uint32, error) {
	w := s.w
	selected := s.in[:0]
	for _, n := range s.in {
		if !w.has(n, sinceOut) {
			w.mark(n, depthInner)
			selected = append(selected, n)
		}
	}
	if len(selected) == 0 {
		return nil, fault.New(fault.Invalid, "the shallow limits leave no commit to send")
	}
	var ends []uint32
	for _, n := range selected {
		end := w.has(n, grafted)
		parents, err := w.parents(n)
		if err != nil {
			return nil, err
		}
		for _, p := range parents {
			end = end || !w.has(p, depthInner)
		}
		if end {
			ends = append(ends, n)
		}
	}
	for _, n := range ends {
		w.mark(n, depthEnd)
	}
	return ends, nil
}
