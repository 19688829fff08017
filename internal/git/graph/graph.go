package graph

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

// Objects is the part of an object store that the package needs. It is safe for concurrent use.
type Objects interface {
	// Read returns an object's type and content. The error is NotFound if there is no such object, and Invalid if it has
	// more than limit bytes. The caller must not change or keep the bytes.
	Read(id git.ObjectID, limit int64) (git.ObjectType, []byte, error)
	// Header returns an object's type and size. The errors are those of Read.
	Header(id git.ObjectID) (git.ObjectType, int64, error)
	// Has reports whether the object exists.
	Has(id git.ObjectID) (bool, error)
	// Lookups is for callers that check many objects, some of which may be missing.
	Lookups() pack.Lookups
}

// Options of a Graph.
type Options struct {
	Format git.ObjectFormat // the zero value is SHA-1

	// MaxCommits is the maximum number of parsed commits that are kept for later walks, about 65 bytes each. Commits in a
	// commit-graph do not count. Zero means 1,048,576. A walk may exceed it; the table is then emptied before the next
	// one.
	MaxCommits int

	// Inside reports whether a path without symbolic links may contain commit-graphs. Links to other paths are not
	// followed. It must be safe for concurrent use. Nil: any path may.
	Inside func(path string) bool

	Metrics *Metrics // may be nil
}

const defaultMaxCommits = 1 << 20

// Commits is a set of commits, such as the grafts of a walk. nil is the empty set. This package does not modify the
// sets that it gets, so they may be shared.
type Commits map[git.ObjectID]struct{}

// NewCommits creates a set.
func NewCommits(ids ...git.ObjectID) Commits {
	c := make(Commits, len(ids))
	for _, id := range ids {
		c[id] = struct{}{}
	}
	return c
}

// Has reports whether id is in the set.
func (c Commits) Has(id git.ObjectID) bool {
	_, ok := c[id]
	return ok
}

// With returns a set with more commits: the same set if it has them already, otherwise a copy. It must not be modified.
func (c Commits) With(more iter.Seq[git.ObjectID]) Commits {
	own := false
	for id := range more {
		if c.Has(id) {
			continue
		}
		if !own {
			with := make(Commits, len(c)+1)
			maps.Copy(with, c)
			c, own = with, true
		}
		c[id] = struct{}{}
	}
	return c
}

// IDs lists the set in order.
func (c Commits) IDs() []git.ObjectID {
	return slices.SortedFunc(maps.Keys(c), git.ObjectID.Compare)
}

// Graph is one repository's history. It is safe for concurrent use.
type Graph struct {
	objects    Objects
	objectDirs func() []string
	format     git.ObjectFormat
	inside     func(string) bool
	maxCommits int
	metrics    *Metrics

	view         atomic.Pointer[view]
	walks        sync.Pool // of *walk
	otherObjects otherObjects

	mu     sync.Mutex // guards the following fields and every change of view
	stamps []disk.ID  // of the files that the view was made from
	young  bool       // the files may have changed without a change of the stamps
	failed bool       // some of the files could not be used
	bad    error      // an error of a walk that Refresh has to return
}

// view is the commit-graph at one time, with the other commits that were parsed. Layers never change; the table grows.
type view struct {
	layers []layer
	total  uint32 // commits in layers
	gens   generations
	table  *commitTable
}

// generations is the kind of generation number that all layers have.
type generations uint8

const (
	noGenerations generations = iota
	levels                    // topological levels
	corrected                 // corrected commit dates
)

// New creates the Graph of a repository. objectDirs lists its object directory first, then its alternates. It does not
// read files; the first walk or Refresh does.
func New(objects Objects, objectDirs func() []string, o Options) *Graph {
	if o.Format == 0 {
		o.Format = git.SHA1
	}
	if o.MaxCommits <= 0 {
		o.MaxCommits = defaultMaxCommits
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	g := &Graph{objects: objects, objectDirs: objectDirs, format: o.Format, inside: o.Inside, maxCommits: o.MaxCommits,
		metrics: o.Metrics}
	g.otherObjects.max = max(1<<12, min(1<<18, o.MaxCommits/4))
	return g
}

// Refresh checks for new, removed and changed commit-graph files with two stat calls for each object directory. Call it
// once for each request. It reports a damaged file once, with an error of kind Corrupt. The Graph works without the
// file.
func (g *Graph) Refresh() error {
	dirs := g.objectDirs()
	stamps, young := stampsOf(dirs)
	g.mu.Lock()
	defer g.mu.Unlock()
	bad := g.bad
	g.bad = nil
	known := g.view.Load()
	same := known != nil && slices.Equal(stamps, g.stamps)
	if same && !g.young {
		return bad
	}
	best, errs := g.load(dirs, stamps)
	v, err := g.newView(best)
	if err != nil {
		errs = append(errs, err)
	}
	failed := len(errs) > 0
	isReported := same && failed && g.failed
	g.stamps, g.young, g.failed = stamps, young, failed
	if !same || !slices.EqualFunc(best, known.layers, layer.equals) {
		g.view.Store(v)
	}
	if !failed || isReported {
		return bad
	}
	return fault.Wrap(fault.Corrupt, "a damaged commit-graph is ignored", errors.Join(errs...))
}

// stampsOf reads the IDs of the two files in each directory. young reports whether one of the files may change without
// a change of its ID. A file that cannot be read counts as missing: results stay correct, but walks take longer.
func stampsOf(dirs []string) (stamps []disk.ID, young bool) {
	now := time.Now()
	for _, dir := range dirs {
		for _, path := range [...]string{singlePath(dir), chainPath(dir)} {
			id, err := disk.Stat(path)
			if err != nil {
				id = disk.ID{}
			}
			stamps = append(stamps, id)
			young = young || !id.Settled(now)
		}
	}
	return stamps, young
}

// load opens the files and returns the layers with the most commits.
func (g *Graph) load(dirs []string, stamps []disk.ID) (best []layer, errs []error) {
	opener := files{dirs, g.format, g.inside}
	for i, dir := range dirs {
		if stamps[2*i] == (disk.ID{}) && stamps[2*i+1] == (disk.ID{}) {
			continue
		}
		layers, err := opener.load(dir)
		if count(layers) > count(best) {
			best = layers
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return best, errs
}

func count(layers []layer) uint32 {
	if len(layers) == 0 {
		return 0
	}
	top := &layers[len(layers)-1]
	return top.base + top.n
}

// newView creates a view with the kind of generation number that all layers have. If a layer cannot be read, the view
// has no layers.
func (g *Graph) newView(layers []layer) (*view, error) {
	v := &view{layers: layers, total: count(layers), gens: corrected}
	var err error
	for i := range layers {
		l := &layers[i]
		if l.dates.Size == 0 && l.n > 0 {
			v.gens = min(v.gens, levels)
		}
		err = errors.Join(err, l.file.Do(func(b []byte) error {
			if !l.hasLevels(b) {
				v.gens = noGenerations
			}
			return nil
		}))
	}
	if err != nil {
		v = &view{}
	}
	v.table = newTable(v.total, g.format.Size())
	return v, err
}

// current returns the view for a new walk.
func (g *Graph) current() *view {
	v := g.view.Load()
	if v == nil {
		if err := g.Refresh(); err != nil {
			g.mu.Lock()
			g.bad = err
			g.mu.Unlock()
		}
		v = g.view.Load()
	}
	if v.table.len() <= g.maxCommits {
		return v
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.view.Load(); now != v {
		return now
	}
	fresh := *v
	fresh.table = newTable(v.total, g.format.Size())
	g.view.Store(&fresh)
	return &fresh
}

// dropView replaces a view whose commit-graph proved damaged during a walk. Refresh reads the files when they change.
func (g *Graph) dropView(v *view, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.view.Load() == v {
		g.bad = fault.Wrap(fault.Corrupt, "a damaged commit-graph is ignored", err)
		g.young = false // do not read the file again before its ID changes
		g.view.Store(&view{table: newTable(0, g.format.Size())})
	}
}

// run calls fn with a walk, and again without the commit-graph if that proves damaged. fn must start from the beginning
// each time.
func (g *Graph) run(ctx context.Context, shallow Commits, fn func(w *walk) error) error {
	for {
		v := g.current()
		w := g.newWalk(ctx, v)
		var returned bool
		err := v.open(nil, func(layers []layerBytes) error {
			w.layers = layers
			err := w.graft(shallow)
			if err == nil {
				err = fn(w)
			}
			returned = true
			return err
		})
		g.release(w)
		if err != nil && len(v.layers) > 0 && (!returned || errors.Is(err, errBadGraph)) {
			g.dropView(v, err)
			continue
		}
		return err
	}
}

// open calls fn with the bytes of all layers, bottom first, inside disk.Mapping.Do of each.
func (v *view) open(opened []layerBytes, fn func([]layerBytes) error) error {
	if len(opened) == len(v.layers) {
		return fn(opened)
	}
	l := &v.layers[len(opened)]
	return l.file.Do(func(b []byte) error { return v.open(append(opened, l.bytesOf(b)), fn) })
}

// NoGeneration is the generation of a commit that is not in a commit-graph.
const NoGeneration uint64 = math.MaxUint64

// Commit is the part of a commit that a history walk needs.
type Commit struct {
	ID         git.ObjectID
	Parents    []git.ObjectID
	Date       int64  // committer's, in seconds since the epoch
	Generation uint64 // NoGeneration: not in a commit-graph. 0: unknown. Comparable until the commit-graph changes.
}

// Commit returns a commit with its real parents. The error is NotFound if the object does not exist, and Invalid if it
// is not a commit.
func (g *Graph) Commit(id git.ObjectID) (Commit, error) {
	if err := g.exists(id); err != nil {
		return Commit{}, err
	}
	var c Commit
	err := g.run(context.Background(), nil, func(w *walk) error {
		node, err := w.start(id)
		if err != nil {
			return err
		}
		parents, err := w.parents(node)
		if err != nil {
			return err
		}
		c = Commit{ID: id, Date: w.date(node)}
		c.Generation, err = w.generation(node)
		for _, p := range parents {
			c.Parents = append(c.Parents, w.id(p))
		}
		return err
	})
	return c, err
}

// exists returns an error of kind NotFound if there is no such object. A commit-graph may contain commits that were
// pruned, so IDs from outside are looked up in the object store.
func (g *Graph) exists(id git.ObjectID) error {
	ok, err := g.objects.Has(id)
	if err == nil && !ok {
		// The second call returns the error.
		if _, _, err = g.objects.Header(id); err == nil || fault.Is(err, fault.NotFound) {
			err = fault.New(fault.NotFound, "no object %s", id)
		}
	}
	return err
}

// Peel follows annotated tags to an object that is not a tag, and returns its type. The error is NotFound if one of the
// objects does not exist.
func (g *Graph) Peel(id git.ObjectID) (git.ObjectID, git.ObjectType, error) {
	if err := g.exists(id); err != nil {
		return git.ObjectID{}, 0, err
	}
	var o object
	err := g.run(context.Background(), nil, func(w *walk) error {
		var err error
		o, err = w.peel(id, nil)
		return err
	})
	return o.id, o.typ, err
}

func sorted(ids []git.ObjectID) []git.ObjectID {
	slices.SortFunc(ids, git.ObjectID.Compare)
	return slices.Compact(ids)
}

// byAge sorts nodes by age, so that ancestors come late. Nodes of the same age are sorted by ID.
func (w *walk) byAge(nodes []uint32) {
	type keyed struct {
		key  uint64
		node uint32
	}
	list := make([]keyed, len(nodes))
	for i, n := range nodes {
		list[i] = keyed{w.age(n), n}
	}
	slices.SortFunc(list, func(a, b keyed) int {
		if c := cmp.Compare(b.key, a.key); c != 0 {
			return c
		}
		return w.id(a.node).Compare(w.id(b.node))
	})
	for i := range list {
		nodes[i] = list[i].node
	}
}
