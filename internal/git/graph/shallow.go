package graph

import (
	"context"
	"math"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// Infinite is the depth that git sends for the whole history ("deepen 2147483647", `git fetch --unshallow`).
const Infinite = math.MaxInt32

// Boundary is upload-pack's response to a client that deepens (gitprotocol-v2, "shallow-info"), both lists sorted.
// After it, the client's shallow commits are its previous ones, without Unshallow, and with Shallow.
//
// While git makes the pack, the client's former shallow commits stay grafts, also those of Unshallow, whose real
// parents are additional wants.
type Boundary struct {
	Shallow   []git.ObjectID // the new ends of history that are not in the client's shallow set
	Unshallow []git.ObjectID // commits of the client's shallow set that have their parents from now on
}

// Marks of the shallow walks.
const (
	depthSeen   uint8 = 1 << 0
	depthEnd    uint8 = 1 << 1 // at the boundary
	depthInner  uint8 = 1 << 2 // its parents are in the client's history
	depthClient uint8 = 1 << 3 // of the client's boundary
	depthBelow  uint8 = 1 << 4 // reached from the client's boundary
)

// Depth implements "deepen": history ends at commits whose shortest path from a want has depth commits, the want
// included. As in git, a commit at that depth is a boundary even if it has no parents, and so is a commit of
// serverShallow above it. Wants are peeled. Wants that are not commits are ignored. With depth Infinite and an empty
// serverShallow, all of the client's shallow commits that exist get their parents, without a walk.
//
// If the repository itself is shallow and the client does not deepen, git reports the repository's boundary. The caller
// gets it with depth Infinite, and the client's shallow commits added to serverShallow.
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

// DepthRelative implements "deepen" with "deepen-relative": history ends depth commits below each of the client's
// shallow commits that the wants reach in the client's history. On paths without a shallow commit, it ends depth below
// the level of the farthest one. If the wants reach none, the client's history does not change.
//
// If the client's boundary is on one level, git does the same since 2.54. If it is on several levels, git counts from
// the nearest one, and the client loses history.
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

// boundaryOf returns the boundary for the commits at which history ends, which ends returns.
func (g *Graph) boundaryOf(ctx context.Context, depth int, serverShallow, clientShallow Commits,
	ends func(w *walk) ([]uint32, error)) (b Boundary, err error) {
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

// visitLevels visits commits level by level, from starts on level 1. visit reports whether to continue with the parents
// of a commit. A commit is visited again only if it is a start that was not marked as seen before.
func (w *walk) visitLevels(starts []uint32, seen uint8, visit func(n uint32, level int) (descend bool)) error {
	current, next := slices.Clone(starts), []uint32(nil)
	for level := 1; len(current) > 0; level++ {
		for _, n := range current {
			if err := w.step(); err != nil {
				return err
			}
			if !visit(n, level) {
				continue
			}
			parents, err := w.parents(n)
			if err != nil {
				return err
			}
			for _, p := range parents {
				if w.visit(p, seen) {
					next = append(next, p)
				}
			}
		}
		current, next = next, current[:0]
	}
	return nil
}

// descend returns the commits where history ends: those on the last level, and grafted ones above it.
func (w *walk) descend(starts []uint32, depth int) (ends []uint32, err error) {
	for _, n := range starts {
		w.mark(n, depthSeen)
	}
	err = w.visitLevels(starts, depthSeen, func(n uint32, level int) bool {
		if level >= depth && depth < Infinite || w.has(n, grafted) {
			w.mark(n, depthEnd)
			ends = append(ends, n)
			return false
		}
		w.mark(n, depthInner)
		return true
	})
	return ends, err
}

// descendRelative returns the commits where history ends. That is depth below each of the client's boundary commits
// that the tips reach. On other paths it is depth below the level of the farthest of those.
func (w *walk) descendRelative(tips []uint32, depth int, clientShallow Commits) ([]uint32, error) {
	if err := w.markAll(clientShallow, depthClient); err != nil {
		return nil, err
	}
	type leveled struct {
		node  uint32
		level int
	}
	var above []leveled // commits above the client's boundary
	var starts []uint32 // the client's boundary
	deepest := 0
	for _, n := range tips {
		w.mark(n, depthSeen)
	}
	err := w.visitLevels(tips, depthSeen, func(n uint32, level int) bool {
		if w.has(n, depthClient) {
			starts, deepest = append(starts, n), level
			return false
		}
		above = append(above, leveled{n, level})
		return !w.has(n, grafted)
	})
	if err != nil || len(starts) == 0 {
		return nil, err
	}
	last := deepest + depth // the level on which history ends
	var ends []uint32
	for _, c := range above {
		switch {
		case c.level > last:
		case c.level == last || w.has(c.node, grafted):
			w.mark(c.node, depthEnd)
			ends = append(ends, c.node)
		default:
			w.mark(c.node, depthInner)
		}
	}
	below, err := w.descendBelow(starts, depth)
	return slices.DeleteFunc(append(ends, below...), func(n uint32) bool { return w.has(n, depthInner) }), err
}

// descendBelow marks depth levels of commits from starts on as inner. It returns the commits of the next level, and
// those above it where history ends.
func (w *walk) descendBelow(starts []uint32, depth int) (ends []uint32, err error) {
	err = w.visitLevels(starts, depthBelow, func(n uint32, level int) bool {
		switch {
		case w.has(n, depthInner):
			return false
		case level > depth || w.has(n, grafted):
			if !w.has(n, depthEnd) {
				w.mark(n, depthEnd)
				ends = append(ends, n)
			}
			return false
		}
		w.mark(n, depthInner)
		return true
	})
	return ends, err
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
