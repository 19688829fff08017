package compare

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// maxRoutes is how many routes are known at a time. When one more comes, the half that was met least goes into "other".
const maxRoutes = 512

// Other is the route of all requests that have no row of their own. They are not alike.
const Other = "other"

// counts are requests by how they ended.
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

// routeData is what is known of a route, by side.
type routeData struct {
	name   string
	counts [2]counts
	times  [2]sketch
}

func (r *routeData) total() uint64 { return r.counts[0].total() + r.counts[1].total() }

// stream is a sequence of lines; blocks are counted in it.
type stream struct {
	position, blockLines int
}

// firstBlock is how many requests the blocks of a log have at first.
const firstBlock = 64

// next returns the block of the next request. halve: each two have to become one before.
func (s *stream) next() (block int, halve bool) {
	if s.position >= s.blockLines*maxBlocks {
		s.blockLines *= 2
		halve = true
	}
	block = s.position / s.blockLines
	s.position++
	return block, halve
}

// sideData is what is known of a side beyond its routes.
type sideData struct {
	name        string
	files       []string
	format      Format
	lines       int // all of them
	other       int
	outside     int
	malformed   map[string]int
	examples    []Malformed
	steps       steps
	first, last time.Time
	busy        float64 // sum of durations, of requests that failed too, in nanoseconds
}

// table gathers what both sides have. Not safe for concurrent use.
type table struct {
	sides   [2]sideData
	include [classes]bool
	split   string
	fixed   bool // the pools' names were given
	streams [2]stream
	routes  map[string]*routeData
	other   routeData
	folded  bool // routes went into other for want of room, and may have come again
	foreign int  // requests of other pools
	without int  // requests without the field that tells sides apart
	pool    pool
	file    string // that is read
	before  int    // its lines that were read
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

// begin names the file whose batches follow.
func (t *table) begin(file string) { t.file, t.before = file, 0 }

// add takes what a worker read, for a side; with split, for both.
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
	if string(name) == Other { // the operation of all requests that are none of Git's
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

// halve makes one block of each two, of the sides of a stream.
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

// sideOf is the side of a pool; -1: none.
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
	return -1, fmt.Errorf("%q has %w: %s; choose two with --pools %s,%s", t.split, errPools, strings.Join(names, ", "),
		names[0], names[1])
}

// meet makes room for a route that was not known.
func (t *table) meet(name string) *routeData {
	if len(t.routes) >= maxRoutes {
		t.prune(maxRoutes / 2)
		t.folded = true
	}
	r := &routeData{name: name}
	t.routes[name] = r
	return r
}

// byTraffic are the routes, most requests first.
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

// prune keeps some routes, and makes the others one.
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

// order puts the sides of a split log into the order of their names: which came first is chance.
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
