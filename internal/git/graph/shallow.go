package graph

import (
	"context"
	"math"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// Infinite is the depth that git sends to have a whole history ("deepen 2147483647", `git fetch --unshallow`).
const Infinite = math.MaxInt32

// Boundary is upload-pack's response to a client that deepens (gitprotocol-v2, "shallow-info"), both lists sorted.
// After it, the client's shallow commits are its previous ones, without Unshallow, and with Shallow.
//
// The pack differs: for it, git keeps the client's former shallow commits as grafts, Unshallow too, and treats the real
// parents of Unshallow as additional wants.
type Boundary struct {
	Shallow   []git.ObjectID // the new ends of history that are not in the client's shallow set
	Unshallow []git.ObjectID // commits of the client's shallow set that have their parents from now on
}

// Marks of the shallow walks.
const (
	depthSeen   uint8 = 1 << 0
	depthEnd    uint8 = 1 << 1 // at the boundary
	depthInner  uint8 = 1 << 2 // its parents are within
	depthClient uint8 = 1 << 3 // of the client's boundary
	depthBelow  uint8 = 1 << 4 // reached from the client's boundary
)

// Depth implements "deepen": history ends depth commits below the wants, by the shortest way; the wants are at depth 1.
// As in git, a commit at that depth is a boundary even if it has no parents, and so is a commit of serverShallow above
// it. Wants are peeled. Wants that are not commits are ignored. With depth Infinite and an empty serverShallow, all of
// the client's shallow commits that exist get their parents, without a walk.
//
// If the repository itself is shallow and the client does not deepen, git reports its boundary as well. That is depth
// Infinite, with the client's shallow commits added to serverShallow.
func (g *Graph) Depth(ctx context.Context, wants []git.ObjectID, depth int, serverShallow, clientShallow Commits) (
	Boundary, error) {
	if depth >= Infinite && len(serverShallow) == 0 {
		return g.unshallowAll(clientShallow)
	}
	return g.boundaryOf(ctx, depth, serverShallow, clientShallow, func(w *walk) ([]uint32, error) {
		starts, err := w.peelCommits(wants, false)
		if err != nil {
			return nil, err
		}
		return w.descend(starts, depth)
	})
}

// DepthRelative implements "deepen" with "deepen-relative": depth more commits below each of the client's shallow
// commits that the wants reach, in the history that the client has. Where the wants reach down without one on the way,
// history ends depth below the level of the farthest of them. Without any, the client is not shallow there, and its
// history does not change.
//
// For a client whose boundary is on one level, git does the same since 2.54. If the boundary is on several levels, git
// counts from the nearest and makes the client forget history.
func (g *Graph) DepthRelative(ctx context.Context, wants []git.ObjectID, depth int, serverShallow,
	clientShallow Commits) (Boundary, error) {
	if depth >= Infinite {
		return g.Depth(ctx, wants, depth, serverShallow, clientShallow)
	}
	return g.boundaryOf(ctx, depth, serverShallow, clientShallow, func(w *walk) ([]uint32, error) {
		tips, err := w.peelCommits(wants, false)
		if err != nil {
			return nil, err
		}
		return w.descendRelative(tips, depth, clientShallow)
	})
}

// boundaryOf is what Depth and DepthRelative share: ends walks, and returns the commits where history ends.
func (g *Graph) boundaryOf(ctx context.Context, depth int, serverShallow, clientShallow Commits,
	ends func(w *walk) ([]uint32, error)) (
	b Boundary, err error) {
	if depth <= 0 {
		return Boundary{}, fault.New(fault.Invalid, "cannot deepen to %d commits", depth)
	}
	err = g.run(ctx, serverShallow, func(w *walk) error {
		found, err := ends(w)
		if err != nil {
			return err
		}
		b = w.boundary(found, clientShallow)
		return nil
	})
	return b, err
}

func (g *Graph) unshallowAll(clientShallow Commits) (Boundary, error) {
	var b Boundary
	for id := range clientShallow {
		ok, err := g.objects.Has(id)
		if err != nil {
			return b, err
		}
		if ok {
			b.Unshallow = append(b.Unshallow, id)
		}
	}
	b.Unshallow = sorted(b.Unshallow)
	return b, nil
}

// descend goes level by level and returns the commits where history ends: on the last level, and grafted ones above.
func (w *walk) descend(level []uint32, depth int) (ends []uint32, err error) {
	for _, n := range level {
		w.mark(n, depthSeen)
	}
	var next []uint32
	for d := 1; len(level) > 0; d++ {
		next = next[:0]
		for _, n := range level {
			if err := w.step(); err != nil {
				return nil, err
			}
			if d >= depth && depth < Infinite || w.has(n, grafted) {
				w.mark(n, depthEnd)
				ends = append(ends, n)
				continue
			}
			w.mark(n, depthInner)
			parents, err := w.parents(n)
			if err != nil {
				return nil, err
			}
			for _, p := range parents {
				if w.visit(p, depthSeen) {
					next = append(next, p)
				}
			}
		}
		level, next = next, level
	}
	return ends, nil
}

// descendRelative returns the commits where history ends. That is depth below each of the client's boundary commits
// that the tips reach. On other ways it is depth below the level of the farthest of those.
func (w *walk) descendRelative(tips []uint32, depth int, clientShallow Commits) ([]uint32, error) {
	if err := w.markAll(clientShallow, depthClient); err != nil {
		return nil, err
	}
	// The levels below the tips, down to the client's boundary.
	var above, starts []uint32
	var levels []int // where in above each level begins
	deepest := 0
	level := slices.Clone(tips)
	for _, n := range level {
		w.mark(n, depthSeen)
	}
	for d := 1; len(level) > 0; d++ {
		levels = append(levels, len(above))
		var next []uint32
		for _, n := range level {
			if err := w.step(); err != nil {
				return nil, err
			}
			if w.has(n, depthClient) {
				starts, deepest = append(starts, n), d
				continue
			}
			above = append(above, n)
			if w.has(n, grafted) {
				continue
			}
			parents, err := w.parents(n)
			if err != nil {
				return nil, err
			}
			for _, p := range parents {
				if w.visit(p, depthSeen) {
					next = append(next, p)
				}
			}
		}
		level = next
	}
	if len(starts) == 0 {
		return nil, nil
	}
	last := deepest + depth // the level on which history ends
	var ends []uint32
	for i, begin := range levels {
		if i+1 > last {
			break
		}
		end := len(above)
		if i+1 < len(levels) {
			end = levels[i+1]
		}
		for _, n := range above[begin:end] {
			if i+1 == last || w.has(n, grafted) {
				w.mark(n, depthEnd)
				ends = append(ends, n)
			} else {
				w.mark(n, depthInner)
			}
		}
	}
	below, err := w.descendBelow(starts, depth)
	return slices.DeleteFunc(append(ends, below...), func(n uint32) bool { return w.has(n, depthInner) }), err
}

// descendBelow marks depth levels of commits from starts on as inner, and returns those of the next level and where
// history ends before.
func (w *walk) descendBelow(starts []uint32, depth int) (ends []uint32, err error) {
	level := starts
	for d := 0; len(level) > 0; d++ {
		var next []uint32
		for _, n := range level {
			if err := w.step(); err != nil {
				return nil, err
			}
			if d == depth || w.has(n, grafted) {
				if !w.has(n, depthInner) && !w.has(n, depthEnd) {
					w.mark(n, depthEnd)
					ends = append(ends, n)
				}
				continue
			}
			w.mark(n, depthInner)
			parents, err := w.parents(n)
			if err != nil {
				return nil, err
			}
			for _, p := range parents {
				if !w.has(p, depthInner) && w.visit(p, depthBelow) {
					next = append(next, p)
				}
			}
		}
		level = next
	}
	return ends, nil
}

// boundary compares the marks of a walk with the client's shallow commits.
func (w *walk) boundary(ends []uint32, clientShallow Commits) Boundary {
	var b Boundary
	for _, n := range ends {
		if id := w.id(n); !clientShallow.Has(id) {
			b.Shallow = append(b.Shallow, id)
		}
	}
	for id := range clientShallow {
		if n, ok := w.find(id); ok && w.has(n, depthInner) && !w.has(n, depthEnd) {
			b.Unshallow = append(b.Unshallow, id)
		}
	}
	b.Shallow, b.Unshallow = sorted(b.Shallow), sorted(b.Unshallow)
	return b
}
