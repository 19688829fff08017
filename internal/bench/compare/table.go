package compare

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// maxRoutes is the maximum number of routes at a time. For one more, the rarer half goes into "other".
const maxRoutes = 512

// Other is the route of all requests without a separate row. They are not comparable.
const Other = "other"

// counts are numbers of requests by outcome.
type counts [classes]uint64

func (c *counts) total() (n uint64) {
	for _, k := range c {
		n += k
	}
	return n
}

func (c *counts) add(o counts) {
	for i, k := range o {
		c[i] += k
	}
}

// routeData has the requests of a route, by side.
type routeData struct {
	name   string
	counts [2]counts
	times  [2]sketch
}

func (r *routeData) total() uint64 { return r.counts[0].total() + r.counts[1].total() }

// stream is a sequence of lines that is divided into blocks.
type stream struct {
	position, blockLines int
}

// firstBlock is the initial number of requests of a block.
const firstBlock = 64

// next returns the block of the next request. If halve is true, pairs of blocks must be joined before.
func (s *stream) next() (block int, halve bool) {
	if s.position >= s.blockLines*maxBlocks {
		s.blockLines *= 2
		halve = true
	}
	block = s.position / s.blockLines
	s.position++
	return block, halve
}

// sideData has the data of a side that is not in its routes.
type sideData struct {
	name        string
	files       []string
	format      Format
	lines       int // all lines
	other       int
	outside     int
	malformed   map[string]int
	examples    []Malformed
	steps       steps
	first, last time.Time
	busy        float64 // sum of durations in nanoseconds, including failed requests
}

// table collects the data of both sides. Not safe for concurrent use.
type table struct {
	sides   [2]sideData
	include [classes]bool
	split   string
	fixed   bool // the names of the pools are given
	streams [2]stream
	routes  map[string]*routeData
	other   routeData
	folded  bool // routes went into other because of maxRoutes, and may have occurred again
	foreign int  // requests of other pools
	without int  // requests without the field of --split
	pool    pool
	file    string // current file
	before  int    // number of its lines so far
}

func newTable(include [classes]bool, split string, pools []string) *table {
	t := &table{include: include, split: split, fixed: len(pools) > 0, routes: map[string]*routeData{}}
	t.other.name = Other
	for i := range t.streams {
		t.streams[i].blockLines = firstBlock
	}
	for i := range pools {
		t.sides[i].name = pools[i]
	}
	return t
}

// begin sets the file of the following batches.
func (t *table) begin(file string) { t.file, t.before = file, 0 }

// add adds the batch of a worker to a side, or with split to both.
func (t *table) add(b *batch, side int) error {
	s := &t.sides[side]
	s.lines += b.lines
	s.other += b.other
	s.outside += b.outside
	for reason, n := range b.malformed {
		if s.malformed == nil {
			s.malformed = map[string]int{}
		}
		s.malformed[reason] += n
	}
	for _, e := range b.examples {
		if len(s.examples) < maxExamples {
			e.File, e.Line = printable([]byte(t.file)), e.Line+t.before
			s.examples = append(s.examples, e)
		}
	}
	t.before += b.lines
	if !b.first.IsZero() && (s.first.IsZero() || b.first.Before(s.first)) {
		s.first = b.first
	}
	if b.last.After(s.last) {
		s.last = b.last
	}
	s.steps.merge(&b.steps)
	for i := range b.records {
		r := &b.records[i]
		at := side
		if t.split != "" {
			var err error
			if at, err = t.sideOf(b.names[r.routeEnd:r.poolEnd]); err != nil {
				return err
			}
			if at < 0 {
				continue
			}
		}
		t.count(r, b.names[r.route:r.routeEnd], at, side)
	}
	return nil
}

func (t *table) count(r *record, name []byte, side, in int) {
	block, halve := t.streams[in].next()
	if halve {
		t.halve(in)
	}
	route := t.routes[string(name)]
	if string(name) == Other { // the operation of all requests other than Git's
		route = &t.other
	} else if route == nil {
		route = t.meet(string(name))
	}
	route.counts[side][r.class]++
	t.sides[side].busy += float64(r.ns)
	if t.include[r.class] {
		route.times[side].add(r.ns, block, &t.pool)
	}
}

// halve joins pairs of blocks for the sides of a stream.
func (t *table) halve(in int) {
	each := func(r *routeData) {
		for side := range r.times {
			if side == in || t.split != "" {
				r.times[side].halve()
			}
		}
	}
	for _, r := range t.routes {
		each(r)
	}
	each(&t.other)
}

var errPools = errors.New("more than two values")

// sideOf returns the side of a pool, or -1.
func (t *table) sideOf(pool []byte) (int, error) {
	if len(pool) == 0 {
		t.without++
		return -1, nil
	}
	for i := range t.sides {
		switch {
		case string(pool) == t.sides[i].name:
			return i, nil
		case t.sides[i].name == "":
			t.sides[i].name = string(pool)
			return i, nil
		}
	}
	if t.fixed {
		t.foreign++
		return -1, nil
	}
	names := []string{t.sides[0].name, t.sides[1].name, string(pool)}
	slices.Sort(names)
	for i := range names {
		names[i] = printable([]byte(names[i]))
	}
	return -1, fmt.Errorf("%q has %w: %s: choose two with --pools %s,%s", t.split, errPools, strings.Join(names, ", "),
		names[0], names[1])
}

// meet adds a new route.
func (t *table) meet(name string) *routeData {
	if len(t.routes) >= maxRoutes {
		t.prune(maxRoutes / 2)
		t.folded = true
	}
	r := &routeData{name: name}
	t.routes[name] = r
	return r
}

// byTraffic returns the routes, most requests first.
func (t *table) byTraffic() []*routeData {
	return slices.SortedFunc(maps.Values(t.routes), func(a, b *routeData) int {
		if x, y := a.total(), b.total(); x != y {
			if x > y {
				return -1
			}
			return 1
		}
		return strings.Compare(a.name, b.name)
	})
}

// prune keeps some routes, and merges the others into one.
func (t *table) prune(keep int) {
	all := t.byTraffic()
	for _, r := range all[min(keep, len(all)):] {
		for side := range r.times {
			t.other.counts[side].add(r.counts[side])
			t.other.times[side].merge(&r.times[side], &t.pool)
		}
		delete(t.routes, r.name)
	}
}

// order sorts the sides of a split log by name, because their order in the log is random.
func (t *table) order() {
	if t.split == "" || t.fixed || t.sides[1].name == "" || t.sides[0].name < t.sides[1].name {
		return
	}
	t.sides[0].name, t.sides[1].name = t.sides[1].name, t.sides[0].name
	t.sides[0].busy, t.sides[1].busy = t.sides[1].busy, t.sides[0].busy
	swap := func(r *routeData) {
		r.counts[0], r.counts[1] = r.counts[1], r.counts[0]
		r.times[0], r.times[1] = r.times[1], r.times[0]
	}
	for _, r := range t.routes {
		swap(r)
	}
	swap(&t.other)
}
