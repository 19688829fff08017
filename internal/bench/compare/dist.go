package compare

import (
	"math"
	"slices"
)

// dist is a distribution of durations: the buckets that are not empty, by value. The values within a bucket are assumed
// to be evenly distributed.
type dist struct {
	n         uint64
	low, high []float64 // nanoseconds
	until     []float64 // the share of requests in this bucket or lower ones
	mean      float64
	variance  float64
	from      *sketch // has the blocks of these requests; nil for a mixture
}

// dist returns the distribution of a sketch. step is the resolution of the clock in nanoseconds.
func (s *sketch) dist(step float64) *dist {
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
			low, high := withinBucket(at, sub, step)
			low = max(low, float64(s.min))
			sum += n
			d.low = append(d.low, low)
			d.high = append(d.high, max(min(high, float64(s.max)), low))
			d.until = append(d.until, float64(sum)/total)
		}
	}
	return d
}

// withinBucket returns the minimum and the maximum duration of a bucket that the clock can show.
func withinBucket(at, sub int, step float64) (low, high float64) {
	low, high = bucketRange(at, sub)
	if first, last := math.Ceil(low/step)*step, math.Floor((high-1)/step)*step; first <= last {
		return first, last
	}
	return low, high
}

// at returns the index of the bucket with the quantile p.
func (d *dist) at(p float64) int {
	i, _ := slices.BinarySearch(d.until, p)
	return min(i, len(d.until)-1)
}

// width returns the resolution at the quantile p, in nanoseconds.
func (d *dist) width(p float64) float64 {
	i := d.at(p)
	return d.high[i] - d.low[i]
}

// quantile returns the duration that a share p of the requests does not exceed.
func (d *dist) quantile(p float64) float64 {
	i := d.at(p)
	below := 0.0
	if i > 0 {
		below = d.until[i-1]
	}
	part := (p - below) / (d.until[i] - below)
	return d.low[i] + min(max(part, 0), 1)*(d.high[i]-d.low[i])
}

// below returns the share of requests that are faster than a duration.
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

// mixture returns the distribution of several routes together. The weights add up to 1.
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
		// the same bucket with other ends
		if last := len(m.low) - 1; last >= 0 && (p.low < m.high[last] || p.low == m.low[last]) {
			m.high[last], m.until[last] = max(m.high[last], p.high), sum
			continue
		}
		m.low, m.high, m.until = append(m.low, p.low), append(m.high, p.high), append(m.until, sum)
	}
	return m
}
