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

// Boundary is what upload-pack tells a client that deepens (gitprotocol-v2, "shallow-info"), both lists sorted. After it, the
// client's shallow commits are those that it named, without Unshallow, and with Shallow.
//
// The pack is another matter: git lets the client's former shallow commits stay grafted for it, Unshallow too, and
// takes the real parents of Unshallow for wants more.
type Boundary struct {
	Shallow   []git.ObjectID // the new end of history, without what is in the client's shallow set already
	Unshallow []git.ObjectID // commits of the client's shallow set that have their parents from now on
}

// Marks of the shallow walks.
const (
	depthSeen  uint8 = 1 << 0
	depthEnd   uint8 = 1 << 1 // at the boundary
	depthInner uint8 = 1 << 2 // its parents are within
)

// Depth answers "deepen": history ends depth commits down from the wants, which are 1 down, whichever way is the shortest. As
// in git a commit at that depth is a boundary even if it has no parents, and so is a commit of serverShallow wherever
// it is met above. Wants are peeled; those that are no commits count for nothing. With depth Infinite and nothing in
// serverShallow all of the client's shallow commits that exist get their parents, without a walk.
//
// Where nothing is to be deepened but the repository itself is shallow, git tells its boundary as well: that is depth
// Infinite with the client's shallow commits put into serverShallow too.
func (g *Graph) Depth(ctx context.Context, wants []git.ObjectID, depth int, serverShallow, clientShallow Commits) (
	Boundary, error) {
	return g.deepen(ctx, depth, serverShallow, clientShallow, func(w *walk) ([]uint32, int, error) {
		starts, err := w.peelCommits(wants, false)
		return starts, depth, err
	})
}

// DepthRelative answers "deepen" with "deepen-relative": depth more commits below those of the client's shallow commits that
// the tips reach. As git does, it looks at the tips, which are the refs that this client may see, and not at the wants; and
// searches by date as `git rev-list` does, so that wrong clocks make it overlook the same commits. Tips that are missing
// are passed over.
func (g *Graph) DepthRelative(ctx context.Context, wants []git.ObjectID, depth int, serverShallow, clientShallow Commits,
	tips []git.ObjectID) (Boundary, error) {
	return g.deepen(ctx, depth, serverShallow, clientShallow, func(w *walk) ([]uint32, int, error) {
		starts, err := w.reachedShallow(tips, clientShallow)
		if depth != Infinite {
			depth++ // the starts are there already
		}
		return starts, depth, err
	})
}

// deepen is what Depth and DepthRelative share. starts gives the commits to count from and the depth, 1 for them.
func (g *Graph) deepen(ctx context.Context, depth int, serverShallow, clientShallow Commits,
	starts func(w *walk) ([]uint32, int, error)) (Boundary, error) {
	if depth <= 0 {
		return Boundary{}, fault.New(fault.Invalid, "cannot deepen to %d commits", depth)
	}
	if depth >= Infinite && len(serverShallow) == 0 {
		return g.unshallowAll(clientShallow)
	}
	var b Boundary
	err := g.run(ctx, serverShallow, func(w *walk) error {
		b = Boundary{}
		nodes, depth, err := starts(w)
		if err != nil {
			return err
		}
		ends, err := w.descend(nodes, depth)
		if err != nil {
			return err
		}
		b = w.boundary(ends, clientShallow)
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

// boundary compares what a walk marked with what the client has.
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

// reachedShallow gives those of the client's shallow commits that the tips reach, as git's search by date sees it.
func (w *walk) reachedShallow(tips []git.ObjectID, clientShallow Commits) ([]uint32, error) {
	visible := NewCommits(tips...)
	var nodes []uint32
	var ask []git.ObjectID
	for _, id := range clientShallow.IDs() {
		n, ok, err := w.commit(id)
		if fault.Is(err, fault.NotFound) {
			continue // git passes over a shallow commit that it does not have
		}
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fault.New(fault.Invalid, "shallow object %s is not a commit", id)
		}
		nodes = append(nodes, n)
		if !visible.Has(id) {
			ask = append(ask, id)
		}
	}
	s := selection{w: w, date: math.MaxInt64}
	if len(ask) > 0 {
		if err := s.start(ask, tips, true); err != nil {
			return nil, err
		}
		if err := s.run(); err != nil {
			return nil, err
		}
	}
	unreached := make(map[uint32]bool, len(s.in))
	for _, n := range s.in {
		unreached[n] = !w.has(n, sinceOut)
	}
	for _, n := range w.touched {
		w.unmark(n, ^grafted)
	}
	w.queue.items = w.queue.items[:0]
	return slices.DeleteFunc(nodes, func(n uint32) bool { return unreached[n] && !visible.Has(w.id(n)) }), nil
}
