package graph

import (
	"context"
	"iter"
	"math"

	"github.com/packhorse-git/packhorse/internal/git"
)

// CommitList is a list of commits with their root trees. It takes two raw object IDs for each commit: 40 bytes with
// SHA-1, 64 with SHA-256. The zero value is empty.
type CommitList struct {
	size int // bytes of a raw object ID
	raw  []byte
}

// Len returns the number of commits.
func (l CommitList) Len() int {
	if l.size == 0 {
		return 0
	}
	return len(l.raw) / (2 * l.size)
}

// ID returns the raw object ID of the i-th commit, in place.
func (l CommitList) ID(i int) []byte { return l.raw[2*i*l.size:][:l.size:l.size] }

// Tree returns the raw object ID of the i-th commit's tree, in place.
func (l CommitList) Tree(i int) []byte { return l.raw[(2*i+1)*l.size:][:l.size:l.size] }

// All yields the raw object IDs of each commit and its tree, in place.
func (l CommitList) All() iter.Seq2[[]byte, []byte] {
	return func(yield func(id, tree []byte) bool) {
		for i := range l.Len() {
			if !yield(l.ID(i), l.Tree(i)) {
				return
			}
		}
	}
}

// RangeOptions are options of Between. The zero value lists whole histories without a limit.
type RangeOptions struct {
	Shallow Commits // treated as having no parents

	// Stop reports whether the walk ends at a commit that wants reach and haves, as far as the walk has seen, do not. Such
	// a commit is not in Range.Commits. Stop gets the raw object ID, which is valid during the call, and may depend on its
	// earlier results. Each commit is asked about at most once; but all are asked about once more if the commit-graph
	// proves damaged. Nil: the walk ends only at roots.
	Stop func(id []byte) bool

	// Tick is called after every 1,024 visited commits. An error ends the walk. May be nil.
	Tick func() error
}

// Range is a part of a history: the commits that some commits reach and others do not.
type Range struct {
	Commits CommitList // the newest first: descendants come before ancestors unless clocks were wrong
	Edges   CommitList // commits that haves reach and that are parents of Commits, each once
}

// Between finds the commits that wants reach and haves do not, with their trees. Tags are peeled, and other objects are
// ignored. Missing haves are ignored; a missing want is an error of kind NotFound, and a missing ancestor of one is
// Corrupt.
//
// Between never omits a commit that haves do not reach, except those at which Stop ends the walk and what only
// these reach. Without haves, or if generation numbers are known, it returns no other commits. Otherwise
// it may also return a commit that haves reach if clocks were wrong by more than a day, as Missing.
//
// With a commit-graph, no object is read except wants and haves. Other commits are read once and kept with their trees
// for later calls (Options.MaxCommits). The walk needs about 9 bytes for each visited commit, 16 for each commit that
// is queued at one time, and a byte for each commit of the commit-graph. These buffers are reused. See CommitList for
// the memory of the result.
func (g *Graph) Between(ctx context.Context, wants, haves []git.ObjectID, o RangeOptions) (Range, error) {
	var r Range
	err := g.run(ctx, o.Shallow, func(w *walk) error {
		m := difference{w: w, oldest: math.MaxInt64, stop: o.Stop, tick: o.Tick}
		if err := m.start(wants, haves); err != nil {
			return err
		}
		if _, err := m.run(0); err != nil {
			return err
		}
		found := m.result(m.found)
		edges, err := m.edges(found)
		r = Range{w.commitList(found), w.commitList(edges)}
		return err
	})
	return r, err
}

// commitList copies the IDs and trees of loaded nodes.
func (w *walk) commitList(nodes []uint32) CommitList {
	l := CommitList{size: w.g.format.Size()}
	l.raw = make([]byte, 0, 2*l.size*len(nodes))
	for _, n := range nodes {
		l.raw = append(append(l.raw, w.rawID(n)...), w.rawTree(n)...)
	}
	return l
}

// Missing finds the commits that wants reach and haves do not, both under the grafts. If there are more than limit,
// some of them are returned and more is true. A limit of 0 means no limit.
//
// The result is exact if generation numbers are known. Otherwise it continues for a day of commit dates below the
// oldest commit that it found. So it may also return a commit whose descendants' clocks were wrong by more than that.
func (g *Graph) Missing(ctx context.Context, wants, haves []git.ObjectID, shallow Commits, limit int) (
	commits Commits, more bool, err error) {
	err = g.run(ctx, shallow, func(w *walk) error {
		m := difference{w: w, oldest: math.MaxInt64}
		if err := m.start(wants, haves); err != nil {
			return err
		}
		if more, err = m.run(limit); err != nil {
			return err
		}
		found := m.result(m.found)
		commits = make(Commits, len(found))
		for _, n := range found {
			commits[w.id(n)] = struct{}{}
		}
		return nil
	})
	if err != nil {
		return nil, false, err
	}
	return commits, more, nil
}

// Marks of difference.
const (
	diffSeen     uint8 = 1 << 0
	diffExpanded uint8 = 1 << 1
	diffHad      uint8 = 1 << 2 // reachable from a have
	diffStopped  uint8 = 1 << 3
	diffEdge     uint8 = 1 << 4
)

// difference is the walk of Between and Missing.
type difference struct {
	w        *walk
	hasHaves bool
	found    []uint32 // reached from wants; those that haves reach are marked later
	oldest   int64    // date of the oldest found outside of the commit-graph
	open     int      // nodes in the queue that haves may not reach

	stop func(id []byte) bool // nil: never
	tick func() error         // may be nil
}

func (m *difference) start(wants, haves []git.ObjectID) error {
	had, err := m.w.peelCommits(haves, true)
	if err != nil {
		return err
	}
	wanted, err := m.w.peelCommits(wants, false)
	if err != nil {
		return err
	}
	m.hasHaves = len(had) > 0
	for _, n := range had {
		m.w.mark(n, diffHad)
		m.push(n)
	}
	for _, n := range wanted {
		m.push(n)
	}
	return nil
}

func (m *difference) push(n uint32) {
	if m.w.visit(n, diffSeen) {
		m.enqueue(n)
		if !m.w.has(n, diffHad) {
			m.open++
		}
	}
}

// enqueue puts descendants before ancestors. Without haves only dates matter, which are cheaper to find than generation
// numbers.
func (m *difference) enqueue(n uint32) {
	key := uint64(m.w.date(n))
	if m.hasHaves {
		key = m.w.age(n)
	}
	m.w.queue.push(n, key)
}

// run visits the queued commits, descendants before ancestors by generation or date.
func (m *difference) run(limit int) (more bool, err error) {
	w := m.w
	for w.queue.len() > 0 && !m.done() {
		n := w.queue.pop()
		if err := m.step(); err != nil {
			return false, err
		}
		had := w.has(n, diffHad)
		if !had {
			m.open--
			if limit > 0 && len(m.found) == limit {
				return true, nil
			}
			if m.add(n) {
				continue
			}
		}
		w.mark(n, diffExpanded)
		if err := m.expand(n, had); err != nil {
			return false, err
		}
	}
	return false, nil
}

func (m *difference) step() error {
	if err := m.w.step(); err != nil {
		return err
	}
	if m.tick != nil && m.w.steps%checkEvery == 0 {
		return m.tick()
	}
	return nil
}

// add stores a commit that wants reach, and reports whether the walk stops there.
func (m *difference) add(n uint32) (stopped bool) {
	w := m.w
	if !w.inGraph(n) || w.v.gens == noGenerations {
		m.oldest = min(m.oldest, w.date(n))
	}
	if m.stop != nil && m.stop(w.rawID(n)) {
		w.mark(n, diffStopped)
		return true
	}
	m.found = append(m.found, n)
	return false
}

// expand queues a commit's parents.
func (m *difference) expand(n uint32, had bool) error {
	w := m.w
	parents, err := w.parents(n)
	if err != nil {
		return err
	}
	w.stack = append(w.stack[:0], parents...)
	for _, p := range w.stack {
		if !had {
			if err := w.load(p); err != nil {
				return err
			}
			m.push(p)
			continue
		}
		if err := m.have(p); err != nil {
			return err
		}
		missing, err := w.tryLoad(p)
		switch {
		case err == nil:
			m.push(p)
		case !missing: // otherwise only the client has it
			return err
		}
	}
	return nil
}

// done reports whether no more commits can be found or excluded.
func (m *difference) done() bool {
	if m.open > 0 {
		return false
	}
	top := m.w.queue.items[0].node
	if m.w.inGraph(top) && m.w.v.gens != noGenerations {
		return true
	}
	return m.w.date(top) < m.oldest-daySlop || m.oldest == math.MaxInt64
}

// have marks a commit as reachable from a have, with those of its ancestors that were visited before.
func (m *difference) have(n uint32) error {
	w := m.w
	pending := []uint32{n}
	for len(pending) > 0 {
		n := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		if !w.visit(n, diffHad) {
			continue
		}
		switch {
		case w.has(n, diffExpanded):
			parents, err := w.parents(n)
			if err != nil {
				return err
			}
			pending = append(pending, parents...)
		case w.has(n, diffStopped): // the haves' walk does not stop there
			m.enqueue(n)
		case w.has(n, diffSeen):
			m.open--
		}
	}
	return nil
}

// result removes the nodes that haves reach, in place.
func (m *difference) result(nodes []uint32) []uint32 {
	if !m.hasHaves {
		return nodes
	}
	left := nodes[:0]
	for _, n := range nodes {
		if !m.w.has(n, diffHad) {
			left = append(left, n)
		}
	}
	return left
}

// edges returns the parents of the result that haves reach.
func (m *difference) edges(found []uint32) (edges []uint32, err error) {
	if !m.hasHaves {
		return nil, nil
	}
	w := m.w
	for _, n := range found {
		parents, err := w.parents(n)
		if err != nil {
			return nil, err
		}
		for _, p := range parents {
			if w.has(p, diffHad) && w.visit(p, diffEdge) {
				edges = append(edges, p)
			}
		}
	}
	return edges, nil
}
