package graph

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// MaxTargets is the maximum number of targets of Contains.
const MaxTargets = 64

// Targets is a set of targets of Contains. Bit i is the i-th target.
type Targets uint64

// Has reports whether the i-th target is in the set.
func (t Targets) Has(i int) bool { return t>>i&1 != 0 }

// Contains calls fn with a function that returns the targets that a tip reaches. All calls of it share one walk, which
// visits each commit once, and does not go below the lowest generation number of the targets. A tip may be any object.
// It reaches nothing if it is missing, or not a commit or a tag of one. Targets are commits. If the walk would visit
// more than limit commits, the error is Invalid. If the commit-graph proves damaged, fn is called again.
func (g *Graph) Contains(ctx context.Context, targets []git.ObjectID, shallow Commits, limit int,
	fn func(reached func(tip git.ObjectID) (Targets, error)) error) error {
	if len(targets) > MaxTargets {
		return fault.New(fault.Invalid, "%d commits are more than %d", len(targets), MaxTargets)
	}
	return g.run(ctx, shallow, func(w *walk) error {
		c := containment{w: w, limit: limit, own: make(map[uint32]Targets), known: make(map[uint32]Targets)}
		nodes := make([]uint32, len(targets))
		for i, id := range targets {
			n, err := w.start(id)
			if err != nil {
				return err
			}
			nodes[i] = n
			c.own[n] |= 1 << i
			c.all |= 1 << i
		}
		var err error
		if c.floor, err = w.floorOf(nodes); err != nil {
			return err
		}
		return fn(c.reached)
	})
}

// containment finds which targets commits reach.
type containment struct {
	w     *walk
	limit int // of visited commits
	floor floor
	all   Targets
	own   map[uint32]Targets // the targets
	known map[uint32]Targets // results of visited commits
}

// reached returns the targets that a tip reaches.
func (c *containment) reached(tip git.ObjectID) (Targets, error) {
	o, err := c.w.peel(tip, nil)
	if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Corrupt) || fault.Is(err, fault.Invalid) {
		return 0, nil // a broken ref
	}
	if err != nil || o.typ != git.Commit {
		return 0, err
	}
	return c.search(o.node)
}

// search goes depth first, and keeps the result of each commit that it leaves.
func (c *containment) search(start uint32) (Targets, error) {
	w := c.w
	w.stack = append(w.stack[:0], start)
	for len(w.stack) > 0 {
		n := w.stack[len(w.stack)-1]
		found, next, err := c.look(n)
		if err != nil {
			return 0, err
		}
		if next == nil {
			c.known[n] = found
			w.stack = w.stack[:len(w.stack)-1]
			continue
		}
		if err := w.step(); err != nil {
			return 0, err
		}
		if w.steps > c.limit {
			return 0, errTooMuchHistory(c.limit)
		}
		w.stack = append(w.stack, *next)
	}
	return c.known[start], nil
}

// look returns the targets that a commit reaches, or the next parent to search first.
func (c *containment) look(n uint32) (found Targets, next *uint32, err error) {
	w := c.w
	if err := w.load(n); err != nil {
		return 0, nil, err
	}
	found = c.own[n]
	isBelow, _, err := w.below(n, c.floor)
	if err != nil || isBelow {
		return found, nil, err
	}
	parents, err := w.parents(n)
	for _, p := range parents {
		if found == c.all {
			break
		}
		known, ok := c.known[p]
		if !ok {
			return 0, &p, nil
		}
		found |= known
	}
	return found, nil, err
}
