package graph

import (
	"cmp"
	"context"
	"slices"
	"sort"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// MaxTargets is the maximum number of targets of Contains.
const MaxTargets = 128

// Targets is a set of targets of Contains, by their index.
type Targets [MaxTargets / 64]uint64

// Has reports whether the i-th target is in the set.
func (t Targets) Has(i int) bool { return t[i/64]&(1<<(i%64)) != 0 }

func (t Targets) with(i int) Targets {
	t[i/64] |= 1 << (i % 64)
	return t
}

func (t Targets) and(o Targets) Targets { return Targets{t[0] & o[0], t[1] & o[1]} }
func (t Targets) or(o Targets) Targets  { return Targets{t[0] | o[0], t[1] | o[1]} }

// Reached returns the targets that a tip reaches.
type Reached func(tip git.ObjectID) (Targets, error)

// Contains calls fn with a function that returns the targets that a tip reaches. All calls of it share one walk, which
// visits each commit once, and does not go below the generation numbers of the targets. A tip may be any object. It
// reaches nothing if it is missing, or not a commit or a tag of one. Targets are commits, and the zero ID is not
// reached. If the walk would visit more than limit commits, the error is Invalid. If the commit-graph proves damaged,
// fn is called again.
func (g *Graph) Contains(ctx context.Context, targets []git.ObjectID, shallow Commits, limit int,
	fn func(Reached) error) error {
	if len(targets) > MaxTargets {
		return fault.New(fault.Invalid, "%d commits are more than %d", len(targets), MaxTargets)
	}
	return g.run(ctx, shallow, func(w *walk) error {
		c := containment{w: w, limit: limit, own: make(map[uint32]Targets), known: make(map[uint32]Targets)}
		if err := c.start(targets); err != nil {
			return err
		}
		return fn(c.reached)
	})
}

// containment finds which targets commits reach.
type containment struct {
	w     *walk
	limit int                // of visited commits
	own   map[uint32]Targets // the targets
	known map[uint32]Targets // results of visited commits
	path  []containFrame

	generations []uint64  // of the targets, sorted
	lower       []Targets // the first 0, 1, ... targets in this order
}

// containFrame is a commit of the current path with the targets found so far.
type containFrame struct {
	frame
	found Targets
}

func (c *containment) start(targets []git.ObjectID) error {
	type leveled struct {
		generation uint64
		i          int
	}
	var order []leveled
	for i, id := range targets {
		if id.IsZero() {
			continue
		}
		n, err := c.w.start(id)
		if err != nil {
			return err
		}
		generation, err := c.w.generation(n)
		if err != nil {
			return err
		}
		c.own[n] = c.own[n].with(i)
		order = append(order, leveled{generation, i})
	}
	slices.SortFunc(order, func(a, b leveled) int { return cmp.Compare(a.generation, b.generation) })
	var all Targets
	c.lower = append(c.lower, all)
	for _, t := range order {
		all = all.with(t.i)
		c.generations, c.lower = append(c.generations, t.generation), append(c.lower, all)
	}
	return nil
}

// possible returns the targets that a commit may have as proper ancestors.
func (c *containment) possible(n uint32) (Targets, error) {
	generation, err := c.w.generation(n)
	if err != nil || generation == 0 || generation == NoGeneration {
		return c.lower[len(c.lower)-1], err
	}
	return c.lower[sort.Search(len(c.generations), func(i int) bool { return c.generations[i] >= generation })], nil
}

// reached returns the targets that a tip reaches.
func (c *containment) reached(tip git.ObjectID) (Targets, error) {
	o, err := c.w.peel(tip, nil)
	if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Corrupt) || fault.Is(err, fault.Invalid) {
		return Targets{}, nil // a broken ref
	}
	if err != nil || o.typ != git.Commit {
		return Targets{}, err
	}
	return c.search(o.node)
}

// search goes depth first, and keeps the result of each commit that it leaves.
func (c *containment) search(n uint32) (Targets, error) {
	if found, ok := c.known[n]; ok {
		return found, nil
	}
	w := c.w
	c.path = c.path[:0]
	if err := c.enter(n); err != nil {
		return Targets{}, err
	}
	for {
		top := &c.path[len(c.path)-1]
		possible, err := c.possible(top.node)
		if err != nil {
			return Targets{}, err
		}
		var parents []uint32
		if top.found.and(possible) != possible {
			if parents, err = w.parents(top.node); err != nil {
				return Targets{}, err
			}
		}
		if int(top.next) < len(parents) {
			p := parents[top.next]
			if found, ok := c.known[p]; ok {
				top.found = top.found.or(found)
				top.next++
			} else if err := c.enter(p); err != nil {
				return Targets{}, err
			}
			continue
		}
		c.known[top.node] = top.found
		if len(c.path) == 1 {
			return top.found, nil
		}
		c.path = c.path[:len(c.path)-1]
	}
}

// enter makes a commit the last one of the path.
func (c *containment) enter(n uint32) error {
	if err := c.w.step(); err != nil {
		return err
	}
	if c.w.steps > c.limit {
		return errTooManyVisits(c.limit)
	}
	if err := c.w.load(n); err != nil {
		return err
	}
	c.path = append(c.path, containFrame{frame{node: n}, c.own[n]})
	return nil
}
