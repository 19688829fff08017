package graph

import (
	"context"
	"math"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// floor is a lower limit for commits that can reach one of a set of commits.
type floor struct {
	generation uint64 // the lowest; 0: unknown for some, so it proves nothing
	date       int64  // the earliest
}

// floorOf returns the floor of loaded nodes. Without nodes, every node is above the floor.
func (w *walk) floorOf(nodes []uint32) (floor, error) {
	f := floor{generation: NoGeneration, date: math.MaxInt64}
	for _, n := range nodes {
		gen, err := w.generation(n)
		if err != nil {
			return f, err
		}
		f.generation, f.date = min(f.generation, gen), min(f.date, w.date(n))
	}
	return f, nil
}

// below reports whether a loaded node, not one of the floor's own, is below the floor. If proven, it reaches none of
// them. If likely, it reaches none of them unless a clock was wrong by more than a day.
func (w *walk) below(n uint32, f floor) (proven, likely bool, err error) {
	gen, err := w.generation(n)
	if err != nil {
		return false, false, err
	}
	if gen != 0 && gen != NoGeneration {
		proven = gen <= f.generation && f.generation != 0
		return proven, proven, nil
	}
	return false, w.date(n) < f.date-daySlop, nil
}

// Marks of reach.
const (
	reachSeen   uint8 = 1 << 0
	reachTarget uint8 = 1 << 1
)

// FirstUnreachable reports whether every target is reachable from some tip, and returns the first that is not. Tips and
// targets may be any objects. A target that is not a commit is reachable if it is a tip, or if a chain of tags from a
// tip passes through it. Trees and blobs inside commits are not reachable. Missing tips are ignored; a missing target
// is not reachable. The result is exact.
func (g *Graph) FirstUnreachable(ctx context.Context, tips, targets []git.ObjectID, shallow Commits) (
	first git.ObjectID, found bool, err error) {
	left, _, err := g.Unreachable(ctx, tips, targets, shallow, true)
	if err != nil {
		return git.ObjectID{}, false, err
	}
	for _, id := range targets {
		if left.Has(id) {
			return id, true, nil
		}
	}
	return git.ObjectID{}, false, nil
}

// Unreachable returns all targets for which FirstUnreachable returns true. Unless exact, and without generation
// numbers, the walk ends at commits that are older than all targets. If a clock was wrong by more than a day, it may
// then also return a target that tips reach. Visited is the number of visited commits.
func (g *Graph) Unreachable(ctx context.Context, tips, targets []git.ObjectID, shallow Commits, exact bool) (
	left Commits, visited int, err error) {
	open := NewCommits(targets...)
	for _, tip := range tips {
		if len(open) == 0 {
			break
		}
		delete(open, tip)
	}
	if len(open) == 0 {
		return nil, 0, nil
	}
	left = Commits{}
	err = g.run(ctx, shallow, func(w *walk) error {
		defer func() { visited += w.steps }()
		clear(left)
		for id := range open {
			left[id] = struct{}{}
		}
		return w.unreachable(tips, left, exact)
	})
	return left, visited, err
}

// unreachable removes from left the targets that the tips reach.
func (w *walk) unreachable(tips []git.ObjectID, left Commits, exact bool) error {
	commits := make(map[uint32]git.ObjectID, len(left))
	var nodes []uint32
	for id := range left {
		n, ok, err := w.commit(id)
		if fault.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if ok {
			commits[n] = id
			nodes = append(nodes, n)
		}
	}
	passed := func(id git.ObjectID) { delete(left, id) }
	starts := func(yield func(uint32) bool) error {
		for _, tip := range tips {
			o, err := w.peel(tip, passed)
			if err != nil {
				if fault.Is(err, fault.NotFound) {
					continue
				}
				return err
			}
			if o.typ == git.Commit && !yield(o.node) {
				return nil
			}
		}
		return nil
	}
	others := len(left) - len(nodes) // tags, trees and blobs, which only the chains of tags can reach
	return w.reach(starts, nodes, exact, func(n uint32) bool {
		delete(left, commits[n])
		return others > 0 || len(left) > 0
	})
}

// reach walks from the start commits and calls found once for each target that it meets, until found returns false. It
// takes starts one by one as it needs them. Unless exact, dates may end the walk.
func (w *walk) reach(starts func(yield func(uint32) bool) error, targets []uint32, exact bool,
	found func(uint32) bool) error {
	f, err := w.floorOf(targets)
	if err != nil {
		return err
	}
	open := len(targets)
	for _, n := range targets {
		w.mark(n, reachTarget)
	}
	var later []uint32 // commits that look too old, but only a generation number could prove it
	var walkErr error
	more := true
	drain := func(n uint32, patient bool) bool {
		w.stack = append(w.stack[:0], n)
		for len(w.stack) > 0 && more && walkErr == nil {
			n := w.stack[len(w.stack)-1]
			w.stack = w.stack[:len(w.stack)-1]
			if !patient && !w.visit(n, reachSeen) {
				continue
			}
			walkErr = w.reachStep(n, f, patient, &open, &later, func(n uint32) { more = found(n) })
			patient = false
		}
		return more && walkErr == nil
	}
	err = starts(func(n uint32) bool { return drain(n, false) })
	for i := 0; exact && i < len(later) && open > 0 && more && walkErr == nil && err == nil; i++ {
		f.date = math.MinInt64 / 2 // from here on dates do not end the walk
		drain(later[i], true)
	}
	if err == nil {
		err = walkErr
	}
	return err
}

// reachStep visits one commit of reach and pushes its parents.
func (w *walk) reachStep(n uint32, f floor, patient bool, open *int, later *[]uint32, found func(uint32)) error {
	if err := w.step(); err != nil {
		return err
	}
	if err := w.load(n); err != nil {
		return err
	}
	if !patient && w.has(n, reachTarget) {
		*open--
		found(n)
	}
	if *open == 0 {
		return nil
	}
	proven, likely, err := w.below(n, f)
	if err != nil || proven {
		return err
	}
	if likely && !patient {
		*later = append(*later, n)
		return nil
	}
	parents, err := w.parents(n)
	for i := len(parents) - 1; i >= 0; i-- {
		if !w.has(parents[i], reachSeen) {
			w.stack = append(w.stack, parents[i])
		}
	}
	return err
}

// Marks of AllReach.
const (
	allSeen    uint8 = 1 << 0
	allHave    uint8 = 1 << 1
	allReaches uint8 = 1 << 2
)

// AllReach reports whether upload-pack may send "ready" (gitprotocol-v2, "fetch"): every want can reach a have or a
// parent of one, because a client that has a commit has its parents. As in git, wants that are not commits are ignored.
// The walk does not continue from commits older than the oldest have, except for wants.
//
// So true is proven. False may also mean that the path leads through older commits, or that clocks were wrong. Haves
// that are missing or not commits are ignored. Visited is the number of visited commits, for callers that limit their
// work.
func (g *Graph) AllReach(ctx context.Context, wants, haves []git.ObjectID, shallow Commits) (all bool, visited int,
	err error) {
	err = g.run(ctx, shallow, func(w *walk) error {
		all = false
		defer func() { visited += w.steps }()
		starts, err := w.peelCommits(wants, false)
		if err != nil {
			return err
		}
		f, err := w.markHaves(haves)
		if err != nil {
			return err
		}
		w.byAge(starts)
		for _, n := range slices.Backward(starts) { // ancestors first, because their results help the others
			if reaches, err := w.reachesHave(n, f); err != nil || !reaches {
				return err
			}
		}
		all = true
		return nil
	})
	return all && err == nil, visited, err
}

// markHaves marks haves and their parents. The floor has the date of the oldest have and the generation of the lowest
// of all.
func (w *walk) markHaves(haves []git.ObjectID) (floor, error) {
	nodes, err := w.peelCommits(haves, true)
	if err != nil {
		return floor{}, err
	}
	oldest, err := w.floorOf(nodes)
	if err != nil {
		return floor{}, err
	}
	known := nodes[:len(nodes):len(nodes)]
	for _, n := range nodes {
		parents, err := w.parents(n)
		if err != nil {
			return floor{}, err
		}
		known = append(known, parents...)
	}
	for _, n := range known {
		if err := w.step(); err != nil {
			return floor{}, err
		}
		if err := w.load(n); err != nil {
			return floor{}, err
		}
		w.mark(n, allHave)
	}
	f, err := w.floorOf(known)
	return floor{f.generation, oldest.date}, err
}

// frame is a commit of the current path, and the index of its next parent.
type frame struct{ node, next uint32 }

// reachesHave searches depth first. If it finds a have, it marks all commits of the current path as reaching one.
// Commits that it has left do not reach a have.
func (w *walk) reachesHave(start uint32, f floor) (bool, error) {
	if w.has(start, allHave|allReaches) {
		return true, nil
	}
	w.mark(start, allSeen)
	path := append(w.path[:0], frame{node: start})
	defer func() { w.path = path[:0] }()
	for len(path) > 0 {
		top := &path[len(path)-1]
		parents, err := w.parents(top.node)
		if err != nil {
			return false, err
		}
		if int(top.next) == len(parents) {
			path = path[:len(path)-1]
			continue
		}
		p := parents[top.next]
		top.next++
		if w.has(p, allHave|allReaches) {
			for _, f := range path {
				w.mark(f.node, allReaches)
			}
			return true, nil
		}
		if !w.visit(p, allSeen) {
			continue
		}
		if err := w.step(); err != nil {
			return false, err
		}
		if err := w.load(p); err != nil {
			return false, err
		}
		proven, _, err := w.below(p, f)
		if err != nil {
			return false, err
		}
		if !proven && w.date(p) >= f.date {
			path = append(path, frame{node: p})
		}
	}
	return false, nil
}
