package compare

import (
	"math"
	"slices"
)

// least returns the minimum number of requests on each side for a percentile's interval. About ten requests must be
// beyond the percentile.
func least(p float64) uint64 { return uint64(math.Ceil(10/(1-p) - 1e-9)) }

// spread is the bootstrap distribution of a percentile: its distribution over samples drawn from the sample. In such a
// sample of n requests the percentile is the empirical quantile of a Beta(p(n+1), (1-p)(n+1)) variable (the order
// statistic of n uniform ones). So no sample is drawn: the variable is cut into pieces, and each is mapped to its
// quantile. The result is the limit of many resamples, and the same in each run.
type spread struct {
	value  []float64 // nanoseconds, ascending
	weight []float64 // sums to 1
}

const (
	spreadPieces = 512
	spreadReach  = 9.0 // standard deviations, on the scale of log odds
)

// spreadOf returns the distribution for the percentile p of a sample that is worth n independent requests.
func spreadOf(d *dist, p, n float64) spread {
	a, b := p*(n+1), (1-p)*(n+1)
	// With log odds t, the density is x^a (1-x)^b, which is close to a normal density around log(a/b).
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

// atMost returns the probability that b-a is at most x for two independent variables. With ratio it is the probability
// that b is at most x times a.
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

// interval is the interval of a difference or a ratio.
type interval struct{ low, high float64 }

// differenceOf returns the central interval of b-a with the probability alpha outside it. It is wider by blur, in
// nanoseconds, on both sides, because the measurement does not show such differences.
func differenceOf(a, b spread, alpha, blur float64) interval {
	first, last := b.value[0]-a.value[len(a.value)-1], b.value[len(b.value)-1]-a.value[0]
	find := func(share float64) float64 {
		return bisect(first, last, func(x float64) bool { return atMost(a, b, x, false) >= share })
	}
	return interval{find(alpha/2) - blur, find(1-alpha/2) + blur}
}

// ratioOf is differenceOf for b/a. It contains 1 if that of the difference contains 0. Durations below floor count as
// floor.
func ratioOf(a, b spread, alpha, blur, floor float64) interval {
	find := func(a, b spread, share float64) float64 {
		a, b = a.above(floor), b.above(floor)
		first, last := math.Log(b.value[0]/a.value[len(a.value)-1]), math.Log(b.value[len(b.value)-1]/a.value[0])
		return math.Exp(bisect(first, last, func(x float64) bool { return atMost(a, b, math.Exp(x), true) >= share }))
	}
	return interval{find(a.plus(blur), b, alpha/2), find(a, b.plus(blur), 1-alpha/2)}
}

// above replaces values below floor by floor.
func (s spread) above(floor float64) spread {
	if s.value[0] >= floor {
		return s
	}
	values := slices.Clone(s.value)
	for i := range values {
		values[i] = max(values[i], floor)
	}
	return spread{values, s.weight}
}

// plus adds some nanoseconds to all values.
func (s spread) plus(ns float64) spread {
	values := slices.Clone(s.value)
	for i := range values {
		values[i] += ns
	}
	return spread{values, s.weight}
}

// bisect returns the smallest x for which a monotonic condition holds.
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
