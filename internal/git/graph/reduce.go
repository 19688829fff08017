package graph

import (
	"context"
	"math"

	"github.com/packhorse-git/packhorse/internal/git"
)

// maximalBudget is the maximum number of commits that one reduction of haves visits.
const maximalBudget = 1 << 18

// Marks of Maximal.
const (
	maxSeen   uint8 = 1 << 0
	maxHave   uint8 = 1 << 1
	maxBehind uint8 = 1 << 2 // a have that another have can reach
)

// Maximal omits every have that is a proper ancestor of another have, where the commits of shallow have no parents. The
// result is sorted and has no duplicates. It reaches exactly the same commits as all haves. Tags, trees and blobs are
// kept, and tags are not followed.
//
// The work is bounded. It visits at most 262,144 commits, and no commit that is older than all open haves by a day if
// there is no generation number. Beyond that limit, haves that are ancestors may stay. The result is the same for the
// same input, commits and commit-graph.
func (g *Graph) Maximal(ctx context.Context, haves []git.ObjectID, shallow Commits) ([]git.ObjectID, error) {
	return g.maximal(ctx, haves, shallow, maximalBudget)
}

func (g *Graph) maximal(ctx context.Context, haves []git.ObjectID, shallow Commits, budget int) ([]git.ObjectID,
	error) {
	all := sorted(append([]git.ObjectID(nil), haves...))
	if len(all) < 2 {
		return all, nil
	}
	var left []git.ObjectID
	err := g.run(ctx, shallow, func(w *walk) error {
		left = left[:0]
		nodes := make([]uint32, len(all))
		m := reduction{w: w, budget: budget}
		for i, id := range all {
			n, ok, err := w.commit(id)
			if err != nil {
				return err
			}
			nodes[i] = math.MaxUint32
			if ok {
				nodes[i] = n
				m.open = append(m.open, n)
			}
		}
		if err := m.run(); err != nil {
			return err
		}
		for i, id := range all {
			if !w.has(nodes[i], maxBehind) {
				left = append(left, id)
			}
		}
		return nil
	})
	return left, err
}

// reduction walks from the haves, the newest first. It does not walk below all open haves.
type reduction struct {
	w      *walk
	open   []uint32 // haves, oldest last, without reached ones at the end
	floors []floor  // of the first 1, 2, ... haves of open
	budget int
}

func (m *reduction) run() error {
	w := m.w
	for _, n := range m.open {
		w.mark(n, maxHave)
	}
	w.byAge(m.open)
	for i := range m.open {
		f, err := w.floorOf(m.open[i : i+1])
		if err != nil {
			return err
		}
		if i > 0 {
			last := m.floors[i-1]
			f = floor{min(f.generation, last.generation), min(f.date, last.date)}
		}
		m.floors = append(m.floors, f)
	}
	starts := append([]uint32(nil), m.open...)
	for _, n := range starts {
		if len(m.open) < 2 || m.budget <= 0 {
			break
		}
		if w.has(n, maxSeen) {
			continue
		}
		w.mark(n, maxSeen)
		w.stack = w.stack[:0]
		if err := m.expand(n); err != nil {
			return err
		}
		if err := m.drain(); err != nil {
			return err
		}
	}
	return nil
}

// age returns a key that is lower for ancestors: the generation, or a higher key from the date for commits without one.
func (w *walk) age(n uint32) uint64 {
	if !w.inGraph(n) || w.v.gens == noGenerations {
		return 1<<63 | uint64(w.date(n))
	}
	gen, err := w.generation(n)
	if err != nil {
		return 0 // the walk will meet the same error
	}
	return gen
}

func (m *reduction) drain() error {
	w := m.w
	for len(w.stack) > 0 && m.budget > 0 && len(m.open) > 1 {
		n := w.stack[len(w.stack)-1]
		w.stack = w.stack[:len(w.stack)-1]
		if w.has(n, maxHave) && w.visit(n, maxBehind) {
			for k := len(m.open); k > 0 && w.has(m.open[k-1], maxBehind); k-- {
				m.open = m.open[:k-1]
			}
		}
		if !w.visit(n, maxSeen) {
			continue
		}
		m.budget--
		if err := w.step(); err != nil {
			return err
		}
		if err := m.expand(n); err != nil {
			return err
		}
	}
	return nil
}

// expand pushes a commit's parents, the first on top, unless it is below all open haves.
func (m *reduction) expand(n uint32) error {
	w := m.w
	if len(m.open) == 0 {
		return errBadGraph // every have is an ancestor of another one, so there is a cycle
	}
	if err := w.load(n); err != nil {
		return err
	}
	_, likely, err := w.below(n, m.floors[len(m.open)-1])
	if err != nil || likely {
		return err
	}
	parents, err := w.parents(n)
	for i := len(parents) - 1; i >= 0; i-- {
		if p := parents[i]; !w.has(p, maxSeen) || w.has(p, maxHave) && !w.has(p, maxBehind) {
			w.stack = append(w.stack, p)
		}
	}
	return err
}
