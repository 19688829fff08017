package graph

import (
	"context"
	"math"
	"sync"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

// Limits of a walk.
const (
	maxCommitSize = 64 << 20 // bytes of a commit or tag object
	usualSize     = 1 << 20  // bytes that almost all of them fit into
	maxNestedTags = 1000
	checkEvery    = 1 << 10 // commits between two checks of the context
	daySlop       = 24 * 60 * 60
)

// grafted marks commits that are treated as having no parents. The lower bits are for the kinds of walks.
const grafted uint8 = 1 << 7

// walk is the state of one walk over one view. It is used by one goroutine, inside view.open.
type walk struct {
	g      *Graph
	v      *view
	ctx    context.Context
	layers []layerBytes

	marks   []uint8  // by node
	touched []uint32 // nodes whose marks are not zero
	queue   queue
	stack   []uint32
	path    []frame
	scratch []uint32 // last result of realParents
	steps   int
}

func (g *Graph) newWalk(ctx context.Context, v *view) *walk {
	w, _ := g.walks.Get().(*walk)
	if w == nil {
		w = &walk{g: g}
	}
	w.ctx, w.v = ctx, v
	return w
}

func (g *Graph) release(w *walk) {
	g.metrics.visited.Add(float64(w.steps))
	if len(w.touched) > len(w.marks)/8 {
		clear(w.marks)
	} else {
		for _, n := range w.touched {
			w.marks[n] = 0
		}
	}
	w.touched, w.stack, w.queue.items = w.touched[:0], w.stack[:0], w.queue.items[:0]
	w.queue.seq, w.steps = 0, 0
	w.ctx, w.v, w.layers = nil, nil, nil
	g.walks.Put(w)
}

// step counts a visited commit and checks the context from time to time.
func (w *walk) step() error {
	w.steps++
	if w.steps%checkEvery == 0 {
		return w.ctx.Err()
	}
	return nil
}

func (w *walk) has(n uint32, bits uint8) bool { return int(n) < len(w.marks) && w.marks[n]&bits != 0 }

func (w *walk) mark(n uint32, bits uint8) {
	if int(n) >= len(w.marks) {
		size := max(int(n)+1+len(w.marks)/2, int(w.v.total)+w.v.table.len())
		w.marks = append(w.marks, make([]uint8, size-len(w.marks))...)
	}
	if w.marks[n] == 0 {
		w.touched = append(w.touched, n)
	}
	w.marks[n] |= bits
}

func (w *walk) unmark(n uint32, bits uint8) {
	if int(n) < len(w.marks) {
		w.marks[n] &^= bits // it stays in touched, which may contain it twice
	}
}

// visit marks n as bits and reports whether it was not before.
func (w *walk) visit(n uint32, bits uint8) bool {
	if w.has(n, bits) {
		return false
	}
	w.mark(n, bits)
	return true
}

// graft has the shallow commits treated as having no parents.
func (w *walk) graft(shallow Commits) error { return w.markAll(shallow, grafted) }

// markAll marks the commits that exist in the repository. Others cannot be reached, and a client could fill the table
// with invented IDs.
func (w *walk) markAll(commits Commits, bits uint8) error {
	lookups, looked := w.g.objects.Lookups(), 0
	for id := range commits {
		if looked++; looked%checkEvery == 0 {
			if err := w.ctx.Err(); err != nil {
				return err
			}
		}
		n, ok := w.find(id)
		if !ok {
			has, err := lookups.Has(id)
			if err != nil {
				return err
			}
			if !has {
				continue
			}
			n = w.v.table.intern(id.Raw())
		}
		w.mark(n, bits)
	}
	return nil
}

// find returns the node of an object ID if it is in the commit-graph or in the table, parsed or not.
func (w *walk) find(id git.ObjectID) (uint32, bool) {
	if id.Format() != w.g.format || id.IsZero() {
		return 0, false
	}
	raw := id.Raw()
	for i := len(w.layers) - 1; i >= 0; i-- {
		if pos, ok := w.layers[i].find(raw); ok {
			return pos, true
		}
	}
	return w.v.table.find(raw)
}

func (w *walk) inGraph(n uint32) bool { return n < w.v.total }

// layer returns the layer of a node of the commit-graph. Most are in the bottom one.
func (w *walk) layer(n uint32) *layerBytes {
	i := 0
	for n >= w.layers[i].base+w.layers[i].n {
		i++
	}
	return &w.layers[i]
}

func (w *walk) id(n uint32) git.ObjectID { return git.RawObjectID(w.rawID(n)) }

// rawID returns a commit's raw ID, in place. It is valid until the walk ends.
func (w *walk) rawID(n uint32) []byte {
	if w.inGraph(n) {
		return w.layer(n).rawID(n)
	}
	return w.v.table.rawID(n)
}

// rawTree returns the raw ID of the tree of a node that is in the graph or loaded, in place. It is valid until the walk
// ends.
func (w *walk) rawTree(n uint32) []byte {
	if w.inGraph(n) {
		return w.layer(n).rawTree(n)
	}
	return w.v.table.rawTree(n)
}

// date returns the commit date of a node that is in the graph or loaded.
func (w *walk) date(n uint32) int64 {
	if w.inGraph(n) {
		return w.layer(n).date(n)
	}
	return w.v.table.date(n)
}

// generation returns the generation of a node: NoGeneration outside of the commit-graph, 0 if it is unknown.
func (w *walk) generation(n uint32) (uint64, error) {
	if !w.inGraph(n) {
		return NoGeneration, nil
	}
	switch w.v.gens {
	case corrected:
		return w.layer(n).corrected(n)
	case levels:
		return w.layer(n).level(n), nil
	}
	return 0, nil
}

// realParents returns a commit's parents without regard to grafts. The slice is valid until the next call. The error is
// Corrupt if a commit is missing.
func (w *walk) realParents(n uint32) ([]uint32, error) {
	var err error
	if w.inGraph(n) {
		w.scratch, err = w.layer(n).parents(n, w.scratch[:0])
		return w.scratch, err
	}
	if err := w.load(n); err != nil {
		return nil, err
	}
	w.scratch = w.v.table.parents(n, w.scratch[:0])
	return w.scratch, nil
}

// parents returns a commit's parents; none if it is grafted. See realParents.
func (w *walk) parents(n uint32) ([]uint32, error) {
	if w.has(n, grafted) {
		return nil, nil
	}
	return w.realParents(n)
}

// load parses a node's commit unless its date and parents are known.
func (w *walk) load(n uint32) error {
	missing, err := w.tryLoad(n)
	if missing {
		return fault.Wrap(fault.Corrupt, "the repository's history is broken: commit "+w.id(n).String()+" is missing", err)
	}
	return err
}

// tryLoad is load with an error of kind NotFound, and missing set, if the repository does not have the commit.
func (w *walk) tryLoad(n uint32) (missing bool, err error) {
	if w.inGraph(n) || w.v.table.parsed(n) {
		return false, nil
	}
	id := w.v.table.id(n)
	typ, data, err := w.read(id)
	if err != nil {
		return fault.Is(err, fault.NotFound), err
	}
	if typ != git.Commit {
		return false, fault.New(fault.Corrupt, "the repository's history is broken: %s is a %s, not a commit", id, typ)
	}
	return false, w.remember(n, id, data)
}

// read reads a commit or a tag. For other objects, which may be large, it may return only the type.
func (w *walk) read(id git.ObjectID) (git.ObjectType, []byte, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, nil, err
	}
	typ, data, err := w.g.objects.Read(id, usualSize)
	if err == nil || !fault.Is(err, fault.Invalid) {
		return typ, data, err
	}
	if typ, _, err = w.g.objects.Header(id); err != nil || typ == git.Tree || typ == git.Blob {
		return typ, nil, err
	}
	return w.g.objects.Read(id, maxCommitSize)
}

// remember parses a commit that is not in the commit-graph.
func (w *walk) remember(n uint32, id git.ObjectID, data []byte) error {
	c, err := pack.ParseCommit(data, w.g.format)
	if err != nil {
		return fault.Wrap(fault.Corrupt, "commit "+id.String()+" is damaged", err)
	}
	parents := make([]uint32, 0, 2)
	for _, p := range c.Parents {
		node, ok := w.find(p)
		if !ok {
			node = w.v.table.intern(p.Raw())
		}
		parents = append(parents, node)
	}
	w.v.table.set(n, min(max(c.Date, 0), math.MaxInt64/4), c.Tree.Raw(), parents)
	return nil
}

// object is an object with its type. node is set for commits, which are then loaded.
type object struct {
	id   git.ObjectID
	typ  git.ObjectType
	node uint32
}

// commit returns the node of an object that is itself a commit.
func (w *walk) commit(id git.ObjectID) (node uint32, ok bool, err error) {
	o, _, err := w.look(id)
	return o.node, err == nil && o.typ == git.Commit, err
}

// look returns an object's type, and for a tag its target, without following it.
func (w *walk) look(id git.ObjectID) (object, otherObject, error) {
	if n, ok := w.find(id); ok && (w.inGraph(n) || w.v.table.parsed(n)) {
		return object{id, git.Commit, n}, otherObject{}, nil
	}
	if h, ok := w.g.otherObjects.get(id); ok {
		return object{id: id, typ: h.typ}, h, nil
	}
	typ, data, err := w.read(id)
	if err != nil {
		return object{}, otherObject{}, err
	}
	o, h := object{id: id, typ: typ}, otherObject{typ: typ}
	switch typ {
	case git.Commit:
		o.node = w.v.table.intern(id.Raw())
		return o, h, w.remember(o.node, id, data)
	case git.Tag:
		if h.target, h.of, err = pack.ParseTag(data, w.g.format); err != nil {
			return o, h, fault.Wrap(fault.Corrupt, "tag "+id.String()+" is damaged", err)
		}
	}
	w.g.otherObjects.put(id, h)
	return o, h, nil
}

// peel follows tags. It calls each, unless nil, with every object, including the first and the last one.
func (w *walk) peel(id git.ObjectID, each func(git.ObjectID)) (object, error) {
	for range maxNestedTags {
		if each != nil {
			each(id)
		}
		o, h, err := w.look(id)
		if err != nil || o.typ != git.Tag {
			return o, err
		}
		if h.of == git.Tree || h.of == git.Blob {
			if each != nil {
				each(h.target)
			}
			return object{id: h.target, typ: h.of}, nil
		}
		id = h.target
	}
	return object{}, fault.New(fault.Invalid, "tag %s: more than %d nested tags", id, maxNestedTags)
}

// peelCommits returns the nodes of the commits that ids name, directly or through tags, each once. It omits other
// objects, and missing ones if missingOK is set.
func (w *walk) peelCommits(ids []git.ObjectID, missingOK bool) ([]uint32, error) {
	nodes := make([]uint32, 0, len(ids))
	seen := make(map[uint32]struct{}, len(ids))
	for _, id := range ids {
		o, err := w.peel(id, nil)
		if err != nil {
			if missingOK && fault.Is(err, fault.NotFound) {
				continue
			}
			return nil, err
		}
		if o.typ != git.Commit {
			continue
		}
		if _, dup := seen[o.node]; !dup {
			seen[o.node] = struct{}{}
			nodes = append(nodes, o.node)
		}
	}
	return nodes, nil
}

// otherObject is an object that is not a commit. For a tag it has the target and the target's type as the tag states
// it.
type otherObject struct {
	target  git.ObjectID
	typ, of git.ObjectType
}

// otherObjects caches objects that are not commits, so that thousands of tags are not read again for each request. It
// is emptied when it is full.
type otherObjects struct {
	max int

	mu sync.RWMutex
	m  map[git.ObjectID]otherObject
}

func (h *otherObjects) get(id git.ObjectID) (otherObject, bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	v, ok := h.m[id]
	return v, ok
}

func (h *otherObjects) put(id git.ObjectID, v otherObject) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.m == nil || len(h.m) >= h.max {
		h.m = map[git.ObjectID]otherObject{}
	}
	h.m[id] = v
}
