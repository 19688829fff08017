package graph

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/packhorse-git/packhorse/internal/git"
)

// MergeBases finds the best common ancestors of a commit and any of the others, as git merge-base --all does: common
// ancestors that no other common ancestor reaches. They are sorted by date, the newest first. There is none if the
// histories are unrelated. The result is exact. The error is Invalid if an object is not a commit.
func (g *Graph) MergeBases(ctx context.Context, one git.ObjectID, others []git.ObjectID, shallow Commits) (
	bases []git.ObjectID, err error) {
	err = g.run(ctx, shallow, func(w *walk) error {
		p := painting{w: w, limit: math.MaxInt, oldest: math.MaxInt64}
		if err := p.start(one, others); err != nil {
			return err
		}
		if err := p.run(func() bool { return true }); err != nil {
			return err
		}
		common := slices.DeleteFunc(slices.Clone(w.touched),
			func(n uint32) bool { return w.marks[n]&paintAll != paintBoth })
		slices.SortFunc(common, func(a, b uint32) int {
			return cmp.Or(cmp.Compare(w.date(b), w.date(a)), w.id(a).Compare(w.id(b)))
		})
		bases = make([]git.ObjectID, len(common))
		for i, n := range common {
			bases[i] = w.id(n)
		}
		return nil
	})
	// without generation numbers, one may reach another one by commits that were not visited
	for i := 0; err == nil && len(bases) > 1 && i < len(bases); {
		others := slices.Delete(slices.Clone(bases), i, i+1)
		var unreachable Commits
		if unreachable, _, err = g.Unreachable(ctx, others, bases[i:i+1], shallow, true); unreachable.Has(bases[i]) {
			i++
		} else {
			bases = others
		}
	}
	return bases, err
}

// AheadBehind counts the commits that only left reaches, and those that only right reaches. If it would visit more than
// limit commits, the error is Invalid. visited is the number of visited commits, for callers that limit their work.
//
// A result is 0 exactly if the other commit reaches this one. The numbers are exact if generation numbers are known, or
// if clocks were wrong by less than a day.
func (g *Graph) AheadBehind(ctx context.Context, left, right git.ObjectID, shallow Commits, limit int) (ahead, behind,
	visited int, err error) {
	err = g.run(ctx, shallow, func(w *walk) error {
		ahead, behind = 0, 0
		p := painting{w: w, limit: limit, oldest: math.MaxInt64}
		defer func() { visited += w.steps }()
		if err := p.start(left, []git.ObjectID{right}); err != nil {
			return err
		}
		if err := p.run(p.counted); err != nil {
			return err
		}
		l, _ := w.find(left)
		r, _ := w.find(right)
		isBehind, isAhead := w.has(l, paintRight), w.has(r, paintLeft)
		for _, n := range w.touched {
			switch colors := w.marks[n] & paintBoth; {
			case colors == paintLeft && !isBehind:
				ahead++
			case colors == paintRight && !isAhead:
				behind++
			}
		}
		return nil
	})
	return ahead, behind, visited, err
}

// Marks of painting. The lower bits are those of reach.
const (
	paintLeft   uint8 = 1 << 2 // reachable from the left side
	paintRight  uint8 = 1 << 3
	paintStale  uint8 = 1 << 4 // reachable from a common ancestor
	paintQueued uint8 = 1 << 5
	paintBoth         = paintLeft | paintRight
	paintAll          = paintBoth | paintStale
)

// painting marks the commits that two sides reach, descendants first (git's paint_down_to_common).
type painting struct {
	w      *walk
	open   int   // queued commits that are not stale
	oldest int64 // date of the oldest commit of one side outside of the commit-graph
	limit  int   // of visited commits
}

func (p *painting) start(left git.ObjectID, right []git.ObjectID) error {
	for i, id := range append([]git.ObjectID{left}, right...) {
		n, err := p.w.start(id)
		if err != nil {
			return err
		}
		color := paintRight
		if i == 0 {
			color = paintLeft
		}
		if err := p.add(n, color); err != nil {
			return err
		}
	}
	return nil
}

// add paints a commit. It is queued unless it has these colors already.
func (p *painting) add(n uint32, colors uint8) error {
	w := p.w
	if err := w.load(n); err != nil {
		return err
	}
	var before uint8
	if int(n) < len(w.marks) {
		before = w.marks[n]
	}
	if before&colors == colors {
		return nil
	}
	w.mark(n, colors|paintQueued)
	wasOpen, isOpen := before&paintQueued != 0 && before&paintStale == 0, w.marks[n]&paintStale == 0
	switch {
	case isOpen && !wasOpen:
		p.open++
	case wasOpen && !isOpen:
		p.open--
	}
	if before&paintQueued == 0 {
		w.queue.push(n, w.age(n))
	}
	return nil
}

// run visits the queued commits until all of them are stale, and end returns true.
func (p *painting) run(end func() bool) error {
	w := p.w
	for w.queue.len() > 0 && (p.open > 0 || !end()) {
		n := w.queue.pop()
		if err := w.step(); err != nil {
			return err
		}
		if w.steps > p.limit {
			return errTooMuchHistory(p.limit)
		}
		w.unmark(n, paintQueued)
		colors := w.marks[n] & paintAll
		if colors&paintStale == 0 {
			p.open--
		}
		switch {
		case colors == paintBoth:
			colors = paintAll
		case colors != paintAll && (!w.inGraph(n) || w.v.gens == noGenerations):
			p.oldest = min(p.oldest, w.date(n))
		}
		parents, err := w.parents(n)
		if err != nil {
			return err
		}
		w.stack = append(w.stack[:0], parents...)
		for _, parent := range w.stack {
			if err := p.add(parent, colors); err != nil {
				return err
			}
		}
	}
	return nil
}

// counted reports whether no more stale commits can be found among those of one side.
func (p *painting) counted() bool {
	w := p.w
	top := w.queue.items[0].node
	return w.inGraph(top) && w.v.gens != noGenerations || p.oldest == math.MaxInt64 || w.date(top) < p.oldest-daySlop
}
