package compare

import (
	"maps"
	"math"
	"math/bits"
	"slices"
	"time"
)

// sketch counts durations like HdrHistogram, in buckets that grow with the value, so that the error is relative. Below
// 2^(subBits+1) nanoseconds each value has its own bucket. Above, each power of two has 2^subBits buckets, so that a
// bucket is at most 0.8 % wide. The zero value is empty.
type sketch struct {
	n       int
	buckets map[int]int
}

const subBits = 7

// bucketOf returns the number of a duration's bucket.
func bucketOf(d time.Duration) int {
	shift := max(bits.Len64(uint64(d))-subBits-1, 0)
	return shift<<subBits + int(d>>shift)
}

// bucketRange returns the durations of a bucket in nanoseconds, from low up to and excluding high.
func bucketRange(bucket int) (low, high float64) {
	shift := max(bucket>>subBits-1, 0)
	low = float64((bucket - shift<<subBits) << shift)
	return low, low + float64(int(1)<<shift)
}

func (s *sketch) add(d time.Duration) {
	if s.buckets == nil {
		s.buckets = map[int]int{}
	}
	s.n++
	s.buckets[bucketOf(d)]++
}

func (s *sketch) merge(o *sketch) {
	if s.buckets == nil {
		s.buckets = map[int]int{}
	}
	s.n += o.n
	for b, n := range o.buckets {
		s.buckets[b] += n
	}
}

// dist is a distribution of durations: the buckets that are not empty, by value. The values within a bucket are assumed
// to be evenly spread.
type dist struct {
	n         float64
	low, high []float64 // nanoseconds
	until     []float64 // the share of requests in this bucket or lower ones
}

func (s *sketch) dist() *dist {
	d := &dist{n: float64(s.n)}
	sum := 0
	for _, bucket := range slices.Sorted(maps.Keys(s.buckets)) {
		low, high := bucketRange(bucket)
		sum += s.buckets[bucket]
		d.low, d.high, d.until = append(d.low, low), append(d.high, high), append(d.until, float64(sum)/d.n)
	}
	return d
}

// quantile returns the duration that a share p of the requests does not exceed.
func (d *dist) quantile(p float64) float64 {
	i, _ := slices.BinarySearch(d.until, p)
	i = min(i, len(d.until)-1)
	below := 0.0
	if i > 0 {
		below = d.until[i-1]
	}
	part := (p - below) / (d.until[i] - below)
	return d.low[i] + min(max(part, 0), 1)*(d.high[i]-d.low[i])
}

// percentiles are the compared percentiles. An interval needs ten requests beyond the percentile.
var percentiles = []struct {
	name  string
	p     float64
	needs int
}{{"p50", 0.50, 20}, {"p95", 0.95, 200}, {"p99", 0.99, 1000}}

// newRow compares the sides of a route. The requests of otherRoute are not comparable, so that it has no intervals.
func newRow(r *route) Row {
	row := Row{Route: printable(r.name), A: r.sides[0].Outcomes, B: r.sides[1].Outcomes}
	a, b := r.sides[0].times.dist(), r.sides[1].times.dist()
	ms := func(d *dist, p float64) *float64 {
		if d.n == 0 {
			return nil
		}
		return new(d.quantile(p) / 1e6)
	}
	for _, q := range percentiles {
		c := Cell{Of: q.name, A: ms(a, q.p), B: ms(b, q.p), Needs: q.needs}
		if c.A != nil && c.B != nil && *c.A > 0 {
			c.Ratio = new(*c.B / *c.A)
		}
		if min(a.n, b.n) >= float64(q.needs) && r.name != otherRoute {
			x, y := spreadOf(a, q.p), spreadOf(b, q.p)
			difference := interval(x, y, 1-confidence, func(a, b float64) float64 { return b - a })
			c.DifferenceInterval = &[2]float64{difference[0] / 1e6, difference[1] / 1e6}
			ratio := interval(x, y, 1-confidence, func(a, b float64) float64 { return max(b, 1) / max(a, 1) })
			c.RatioInterval = &ratio
		}
		row.Cells = append(row.Cells, c)
	}
	return row
}

// spread is the bootstrap distribution of a percentile: its distribution over samples drawn from the sample. In such a
// sample of n requests the percentile is the empirical quantile of a Beta(p(n+1), (1-p)(n+1)) variable (the order
// statistic of n uniform ones). So no sample is drawn: the variable is cut into pieces, and each is mapped to its
// quantile. The result is the limit of many resamples, and the same in each run.
type spread struct{ value, weight []float64 } // nanoseconds, ascending; the weights add up to 1

const (
	spreadPieces = 128
	spreadReach  = 9.0 // standard deviations, on the scale of log odds
)

// spreadOf returns the distribution of the percentile p.
func spreadOf(d *dist, p float64) spread {
	a, b := p*(d.n+1), (1-p)*(d.n+1)
	// With log odds t, the density is x^a (1-x)^b, which is close to a normal density around log(a/b).
	middle, step := math.Log(a/b), 2*spreadReach*math.Sqrt(1/a+1/b)/spreadPieces
	top := a*math.Log(a/(a+b)) + b*math.Log(b/(a+b))
	s, sum := spread{}, 0.0
	for i := range spreadPieces {
		t := middle + (float64(i)+0.5-spreadPieces/2)*step
		logX, logRest := -math.Log1p(math.Exp(-t)), -math.Log1p(math.Exp(t))
		w := math.Exp(a*logX + b*logRest - top)
		s.value, s.weight = append(s.value, d.quantile(math.Exp(logX))), append(s.weight, w)
		sum += w
	}
	for i := range s.weight {
		s.weight[i] /= sum
	}
	return s
}

// interval returns the central interval of a value of two independent variables, with the probability alpha outside it.
func interval(a, b spread, alpha float64, of func(a, b float64) float64) [2]float64 {
	type outcome struct{ value, weight float64 }
	var all []outcome
	for i, x := range a.value {
		for j, y := range b.value {
			if w := a.weight[i] * b.weight[j]; w > 1e-8 {
				all = append(all, outcome{of(x, y), w})
			}
		}
	}
	slices.SortFunc(all, func(a, b outcome) int {
		if a.value < b.value {
			return -1
		}
		return 1
	})
	result, sum := [2]float64{all[0].value, all[len(all)-1].value}, 0.0
	for _, o := range all {
		if sum < alpha/2 {
			result[0] = o.value
		}
		if sum += o.weight; sum >= 1-alpha/2 {
			result[1] = o.value
			break
		}
	}
	return result
}
