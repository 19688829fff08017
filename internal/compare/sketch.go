package compare

import "math/bits"

// A sketch keeps durations as HdrHistogram does: buckets that grow with the value, so that the error is relative. Below
// twice subBuckets nanoseconds each has its own; above, each power of two is cut into subBuckets, so that a bucket is
// at most 1/subBuckets (0.8 %) of its values wide. Pages of buckets are made as they are met: a route takes some 12
// KiB, whatever its number of requests.
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

// sketch holds the durations of one route on one side. Not safe for concurrent use.
type sketch struct {
	n        uint64
	sum      float64 // nanoseconds
	squares  float64
	min, max int64
	fine     [pages]*buckets
	blocks   []*block // nil until there are blocksFrom requests, and each where there is none
	nearFrom int      // the number of the first bucket that blocks have apart
	mixed    bool     // these are not the same buckets in all blocks
}

// add counts a duration, in a block.
func (s *sketch) add(ns int64, in int, pool *pool) {
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
		s.blocks, s.nearFrom = make([]*block, maxBlocks), s.middle()-nearBuckets/2
	}
	if s.blocks[in] == nil {
		s.blocks[in] = new(block)
	}
	s.blocks[in].add(ns, at*subBuckets+sub-s.nearFrom)
}

// middle is the number of the bucket with the median.
func (s *sketch) middle() int {
	left := s.n / 2
	for at, p := range s.fine {
		for sub := 0; p != nil && sub < subBuckets; sub++ {
			if p[sub] > left {
				return at*subBuckets + sub
			}
			left -= p[sub]
		}
	}
	return 0
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
	switch {
	case o.blocks == nil:
	case s.blocks == nil:
		s.blocks, s.nearFrom, s.mixed = make([]*block, maxBlocks), o.nearFrom, o.mixed
	default:
		s.mixed = s.mixed || o.mixed || s.nearFrom != o.nearFrom
	}
	for at, from := range o.blocks {
		s.addBlock(at, from)
	}
}

func (s *sketch) addBlock(at int, from *block) {
	switch {
	case from == nil:
	case s.blocks[at] == nil:
		s.blocks[at] = from
	default:
		s.blocks[at].merge(from)
	}
}

// halve makes one block of each two, for a log that is longer than was thought.
func (s *sketch) halve() {
	if s.blocks == nil {
		return
	}
	old := s.blocks
	s.blocks = make([]*block, maxBlocks)
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
