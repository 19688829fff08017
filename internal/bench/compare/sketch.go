package compare

import "math/bits"

// A sketch stores durations like HdrHistogram, in buckets that grow with the value, so that the error is relative.
// Below twice subBuckets nanoseconds each value has its own bucket. Above, each power of two has subBuckets buckets, so
// that the width of a bucket is at most 1/subBuckets (0.8 %) of its values. Pages of buckets are allocated when needed.
// A route needs about 12 KiB, regardless of its number of requests.
const (
	subBits    = 7
	subBuckets = 1 << subBits
	maxNanos   = 30 * 24 * 3600 * int64(1e9) // longer durations are malformed
	pages      = 52 - subBits + 1            // maxNanos < 2^52
)

type buckets [subBuckets]uint64

// bucketOf returns the page of a duration and the index in the page. ns is within [0, maxNanos].
func bucketOf(ns int64) (at, sub int) {
	exponent := bits.Len64(uint64(ns)) - subBits - 1
	if exponent <= 0 {
		return int(ns >> subBits), int(ns & (subBuckets - 1))
	}
	return exponent + 1, int(ns>>exponent) & (subBuckets - 1)
}

// bucketRange returns the durations of a bucket, from low up to and excluding high.
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
	blocks   []*block // nil below blocksFrom requests; elements are nil if a block has no requests
	nearFrom int      // the first bucket that blocks count separately
	mixed    bool     // blocks have different near buckets
}

// add counts a duration in a block.
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

// middle returns the number of the bucket with the median.
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

// merge adds o, which must not be used afterwards. Its pages go back to the pool.
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

// halve joins pairs of blocks, for a log that is longer than expected.
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

// pool keeps pages for later routes, because most of a million paths occur once.
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
