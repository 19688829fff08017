package compare

import (
	"math"
	"sort"
)

// least says how many requests a percentile needs on each side, so that its interval holds what it promises: about ten beyond it.
func least(p float64) uint64 { return uint64(math.Ceil(10/(1-p) - 1e-9)) }

// dispersion tells how much wider the requests faster than ns scatter over the blocks of a log than independent ones would: the design effect of a
// ratio estimator over clusters. 1 is independence, and the least that is returned; a sample of n requests is worth n/dispersion. ok is false where
// there are too few requests or blocks to tell.
func dispersion(s *sketch, ns float64) (effect float64, ok bool) {
	if s.blocks == nil {
		return 1, false
	}
	counts, below, n, slow := countBlocks(s, edgeNear(ns))
	if len(counts) < 8 || below == 0 || below == n {
		return 1, false
	}
	p, sum := below/n, 0.0
	for i, m := range counts {
		d := slow[i] - p*m
		sum += d * d
	}
	b := float64(len(counts))
	return max(b/(b-1)*sum/(n*p*(1-p)), 1), true
}

// edgeNear is the coarse bucket whose lower end is nearest to a duration.
func edgeNear(ns float64) int {
	at := coarseOf(int64(min(ns, float64(maxNanos))))
	if at+1 < coarseBuckets && coarseEdge(at+1)-ns < ns-coarseEdge(at) {
		at++
	}
	return max(at, 1)
}

// countBlocks counts, in each block that has any, the requests and those of them below a coarse bucket.
func countBlocks(s *sketch, edge int) (counts []float64, below, n float64, slow []float64) {
	for _, b := range s.blocks {
		if b == nil {
			continue
		}
		m, fast := 0.0, 0.0
		for i, c := range b {
			m += float64(c)
			if i < edge {
				fast += float64(c)
			}
		}
		counts, slow = append(counts, m), append(slow, fast)
		below, n = below+fast, n+m
	}
	return counts, below, n, slow
}

// spread is the bootstrap distribution of a percentile: what it would be in samples drawn anew from the sample. In such a sample of n the
// percentile is the empirical quantile of a Beta(p(n+1), (1-p)(n+1)) variable (of the order statistic of n uniform ones), so that nothing has to be
// drawn: the variable is cut into pieces, and each is mapped to its quantile. It is what resampling approaches with ever more resamples, and the
// same in each run.
type spread struct {
	value  []float64 // nanoseconds, ascending
	weight []float64 // sums to 1
}

const (
	spreadPieces = 512
	spreadReach  = 9.0 // standard deviations, on the scale of log odds
)

// spreadOf makes the distribution for the percentile p of a sample that is worth n independent requests.
func spreadOf(d *dist, p, n float64) spread {
	a, b := p*(n+1), (1-p)*(n+1)
	// On the log odds t the density is x^a (1-x)^b: close to a normal one around log(a/b).
	middle, step := math.Log(a/b), 2*spreadReach*math.Sqrt(1/a+1/b)/spreadPieces
	s := spread{make([]float64, spreadPieces), make([]float64, spreadPieces)}
	top := a*math.Log(a/(a+b)) + b*math.Log(b/(a+b))
	sum := 0.0
	for i := range s.value {
		t := middle + (float64(i)+0.5-spreadPieces/2)*step
		logX, logRest := -math.Log1p(math.Exp(-t)), -math.Log1p(math.Exp(t))
		w := math.Exp(a*logX + b*logRest - top)
		s.value[i], s.weight[i] = d.quantile(math.Exp(logX)), w
		sum += w
	}
	for i := range s.weight {
		s.weight[i] /= sum
	}
	return s
}

// atMost is the probability that b-a is at most x, of two independent variables; with ratio, that b is at most x times a.
func atMost(a, b spread, x float64, ratio bool) float64 {
	sum, below, j := 0.0, 0.0, 0
	for i, v := range a.value {
		limit := v + x
		if ratio {
			limit = v * x
		}
		for j < len(b.value) && b.value[j] <= limit {
			below += b.weight[j]
			j++
		}
		sum += a.weight[i] * below
	}
	return sum
}

// interval is where a difference, or a ratio, lies.
type interval struct{ low, high float64 }

// differenceOf is the central interval of b-a with the given probability outside it.
func differenceOf(a, b spread, alpha float64) interval {
	first, last := b.value[0]-a.value[len(a.value)-1], b.value[len(b.value)-1]-a.value[0]
	find := func(share float64) float64 {
		return bisect(first, last, func(x float64) bool { return atMost(a, b, x, false) >= share })
	}
	return interval{find(alpha / 2), find(1 - alpha/2)}
}

// ratioOf is the same for b/a. Durations below floor count as floor.
func ratioOf(a, b spread, alpha, floor float64) interval {
	a, b = a.above(floor), b.above(floor)
	first, last := math.Log(b.value[0]/a.value[len(a.value)-1]), math.Log(b.value[len(b.value)-1]/a.value[0])
	find := func(share float64) float64 {
		return math.Exp(bisect(first, last, func(x float64) bool { return atMost(a, b, math.Exp(x), true) >= share }))
	}
	return interval{find(alpha / 2), find(1 - alpha/2)}
}

func (s spread) above(floor float64) spread {
	first := sort.SearchFloat64s(s.value, floor)
	if first == 0 {
		return s
	}
	values := append([]float64(nil), s.value...)
	for i := range first {
		values[i] = floor
	}
	return spread{values, s.weight}
}

// bisect finds where an ascending condition begins to hold.
func bisect(low, high float64, holds func(float64) bool) float64 {
	if holds(low) {
		return low
	}
	for range 60 {
		middle := low + (high-low)/2
		if holds(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}
