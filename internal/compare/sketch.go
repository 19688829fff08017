package compare

import (
	"math/bits"
	"slices"
)

// A sketch keeps durations as HdrHistogram does: buckets that grow with the value, so that the error is relative. Below twice subBuckets
// nanoseconds each has its own; above, each power of two is cut into subBuckets, so that a bucket is at most 1/subBuckets (0.8 %) of its values wide. Pages of
// buckets are made as they are met: a route takes some 12 KiB, whatever its number of requests.
const (
	subBits    = 7
	subBuckets = 1 << subBits
	maxNanos   = 30 * 24 * 3600 * int64(1e9) // longer durations are malformed
	pages      = 52 - subBits + 1            // maxNanos < 2^52
)

type buckets [subBuckets]uint64

// bucketOf returns the page of a duration and its place there. It is within [0, maxNanos].
func bucketOf(ns int64) (at, sub int) {
	exponent := bits.Len64(uint64(ns)) - subBits - 1
	if exponent <= 0 {
		return int(ns >> subBits), int(ns & (subBuckets - 1))
	}
	return exponent + 1, int(ns>>exponent) & (subBuckets - 1)
}

// bucketRange is the inverse: the durations of a bucket, from low up to but without high.
func bucketRange(at, sub int) (low, high float64) {
	if at <= 1 {
		low = float64(at<<subBits + sub)
		return low, low + 1
	}
	width := int64(1) << (at - 1)
	low = float64(int64(subBuckets+sub) * width)
	return low, low + float64(width)
}

// Blocks are stretches of a log of equal length in lines. Requests that come together are slow together, so that neighbours tell less than as many
// requests that have nothing to do with each other would: how much less is seen in how far apart the blocks lie (dispersion). For this a coarse
// histogram of each block is enough: coarsePerOctave buckets for each power of two, from 2^coarseFrom ns to 2^coarseTo.
const (
	maxBlocks       = 64
	coarseBits      = 2
	coarsePerOctave = 1 << coarseBits
	coarseFrom      = 13 // 8 µs
	coarseTo        = 43 // 2.4 hours
	coarseBuckets   = (coarseTo-coarseFrom)*coarsePerOctave + 2
	blocksFrom      = 128 // requests of a route; fewer show no dispersion
)

type coarse [coarseBuckets]uint32

func coarseOf(ns int64) int {
	if ns < 1<<coarseFrom {
		return 0
	}
	octave := bits.Len64(uint64(ns)) - 1
	if octave >= coarseTo {
		return coarseBuckets - 1
	}
	return 1 + (octave-coarseFrom)<<coarseBits + int(ns>>(octave-coarseBits))&(coarsePerOctave-1)
}

// coarseEdge is the least duration, in nanoseconds, that is in the bucket or above it.
func coarseEdge(bucket int) float64 {
	if bucket == 0 {
		return 0
	}
	bucket--
	octave, sub := coarseFrom+bucket>>coarseBits, bucket&(coarsePerOctave-1)
	return float64(int64(1)<<octave + int64(sub)<<(octave-coarseBits))
}

// sketch holds the durations of one route on one side. Not safe for concurrent use.
type sketch struct {
	n        uint64
	sum      float64 // nanoseconds
	squares  float64
	min, max int64
	fine     [pages]*buckets
	blocks   []*coarse // by block; nil until there are blocksFrom requests, and each where there is none
}

// add counts a duration of a block's.
func (s *sketch) add(ns int64, block int, pool *pool) {
	if s.n == 0 || ns < s.min {
		s.min = ns
	}
	s.max = max(s.max, ns)
	s.n++
	x := float64(ns)
	s.sum += x
	s.squares += x * x
	at, sub := bucketOf(ns)
	if s.fine[at] == nil {
		s.fine[at] = pool.take()
	}
	s.fine[at][sub]++
	if s.n < blocksFrom {
		return
	}
	if s.blocks == nil {
		s.blocks = make([]*coarse, maxBlocks)
	}
	if s.blocks[block] == nil {
		s.blocks[block] = new(coarse)
	}
	s.blocks[block][coarseOf(ns)]++
}

// merge adds what o has; o is not used afterwards. Its pages go back to the pool.
func (s *sketch) merge(o *sketch, pool *pool) {
	if o.n == 0 {
		return
	}
	if s.n == 0 || o.min < s.min {
		s.min = o.min
	}
	s.max = max(s.max, o.max)
	s.n, s.sum, s.squares = s.n+o.n, s.sum+o.sum, s.squares+o.squares
	for at, from := range o.fine {
		switch {
		case from == nil:
		case s.fine[at] == nil:
			s.fine[at] = from
		default:
			for i, n := range from {
				s.fine[at][i] += n
			}
			pool.put(from)
		}
	}
	if o.blocks != nil && s.blocks == nil {
		s.blocks = make([]*coarse, maxBlocks)
	}
	for at, from := range o.blocks {
		s.addBlock(at, from)
	}
}

func (s *sketch) addBlock(at int, from *coarse) {
	switch {
	case from == nil:
	case s.blocks[at] == nil:
		s.blocks[at] = from
	default:
		for i, n := range from {
			s.blocks[at][i] += n
		}
	}
}

// clone copies a sketch, so that it can be merged into and out of.
func (s *sketch) clone() *sketch {
	c := *s
	for at, p := range s.fine {
		if p != nil {
			copied := *p
			c.fine[at] = &copied
		}
	}
	c.blocks = slices.Clone(s.blocks)
	for at, b := range c.blocks {
		if b != nil {
			copied := *b
			c.blocks[at] = &copied
		}
	}
	return &c
}

// halve makes one block of each two, for a log that is longer than was thought.
func (s *sketch) halve() {
	if s.blocks == nil {
		return
	}
	old := s.blocks
	s.blocks = make([]*coarse, maxBlocks)
	for at, from := range old {
		s.addBlock(at/2, from)
	}
}

// pool keeps pages for the next route: of a million paths most are seen once.
type pool struct{ free []*buckets }

func (p *pool) take() *buckets {
	if n := len(p.free); n > 0 {
		got := p.free[n-1]
		p.free = p.free[:n-1]
		return got
	}
	return new(buckets)
}

func (p *pool) put(used *buckets) {
	if len(p.free) < 4*maxRoutes {
		*used = buckets{}
		p.free = append(p.free, used)
	}
}

// dist is a distribution of durations, ready to be asked: the buckets that are not empty, by value. Within a bucket values are taken to be spread
// evenly.
type dist struct {
	n         uint64
	low, high []float64 // nanoseconds
	until     []float64 // the share of requests that are in this bucket or below
	mean      float64
	variance  float64
	from      *sketch // whose blocks these are; nil for a mixture
}

func (s *sketch) dist() *dist {
	d := &dist{n: s.n, from: s}
	if s.n == 0 {
		return d
	}
	total := float64(s.n)
	d.mean = s.sum / total
	d.variance = max(s.squares/total-d.mean*d.mean, 0)
	var sum uint64
	for at, p := range s.fine {
		if p == nil {
			continue
		}
		for sub, n := range p {
			if n == 0 {
				continue
			}
			low, high := bucketRange(at, sub)
			low = max(low, float64(s.min))
			sum += n
			d.low = append(d.low, low)
			d.high = append(d.high, max(min(high, float64(s.max)), low))
			d.until = append(d.until, float64(sum)/total)
		}
	}
	return d
}

// quantile is the duration that a share p of the requests do not exceed.
func (d *dist) quantile(p float64) float64 {
	i, _ := slices.BinarySearch(d.until, p)
	if i >= len(d.until) {
		i = len(d.until) - 1
	}
	below := 0.0
	if i > 0 {
		below = d.until[i-1]
	}
	part := (p - below) / (d.until[i] - below)
	return d.low[i] + min(max(part, 0), 1)*(d.high[i]-d.low[i])
}

// below is the share of requests that are faster than a duration.
func (d *dist) below(ns float64) float64 {
	i, found := slices.BinarySearch(d.low, ns)
	if !found {
		i--
	}
	if i < 0 {
		return 0
	}
	before := 0.0
	if i > 0 {
		before = d.until[i-1]
	}
	part := 1.0
	if d.high[i] > d.low[i] {
		part = min((ns-d.low[i])/(d.high[i]-d.low[i]), 1)
	}
	return before + part*(d.until[i]-before)
}

// mixture is what requests of several routes would be like together, with the given weights, which add up to 1.
func mixture(parts []*dist, weights []float64) *dist {
	type piece struct{ low, high, share float64 }
	var all []piece
	m := &dist{}
	for i, d := range parts {
		w := weights[i]
		if w == 0 || d.n == 0 {
			continue
		}
		m.n += d.n
		m.mean += w * d.mean
		before := 0.0
		for j := range d.until {
			all = append(all, piece{d.low[j], d.high[j], w * (d.until[j] - before)})
			before = d.until[j]
		}
	}
	slices.SortFunc(all, func(a, b piece) int {
		switch {
		case a.low < b.low:
			return -1
		case a.low > b.low:
			return 1
		}
		return 0
	})
	sum := 0.0
	for _, p := range all {
		sum += p.share
		if last := len(m.low) - 1; last >= 0 && p.low < m.high[last] { // the same bucket, but for its ends
			m.high[last], m.until[last] = max(m.high[last], p.high), sum
			continue
		}
		m.low, m.high, m.until = append(m.low, p.low), append(m.high, p.high), append(m.until, sum)
	}
	return m
}
