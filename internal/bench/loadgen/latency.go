package loadgen

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Samples are durations in the order they were measured: all of them, so that percentiles are exact (8 bytes each: a
// million requests are 8 MB). Each worker has its own; not safe for concurrent use.
type Samples []time.Duration

// Percentiles are milliseconds, by nearest rank: p95 is the smallest sample that at least 95 % of all do not exceed. Of
// no samples all are zero.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Summarize sorts s in place.
func (s Samples) Summarize() Percentiles {
	if len(s) == 0 {
		return Percentiles{}
	}
	slices.Sort(s)
	return Percentiles{P50: Milliseconds(s.rank(50)), P95: Milliseconds(s.rank(95)), P99: Milliseconds(s.rank(99)),
		Max: Milliseconds(s[len(s)-1])}
}

// rank is the nearest-rank percentile of sorted samples.
func (s Samples) rank(percent int) time.Duration {
	i := (len(s)*percent + 99) / 100
	return s[max(i, 1)-1]
}

func (p Percentiles) String() string {
	return fmt.Sprintf("p50 %.3f  p95 %.3f  p99 %.3f  max %.3f ms", p.P50, p.P95, p.P99, p.Max)
}

func Milliseconds(d time.Duration) float64 { return Round(float64(d)/1e6, 3) }

// Round keeps reports readable: a fixed number of decimals.
func Round(x float64, decimals int) float64 {
	scale := math.Pow10(decimals)
	return math.Round(x*scale) / scale
}

// Rate is n per unit over a time; zero for no time.
func Rate(n, unit float64, over time.Duration) float64 {
	if over <= 0 {
		return 0
	}
	return n / unit / over.Seconds()
}

// LatencyStats are percentiles with the mean.
type LatencyStats struct {
	Mean float64 `json:"mean"`
	Percentiles
}

func (s Samples) Stats() LatencyStats {
	var sum time.Duration
	for _, d := range s {
		sum += d
	}
	return LatencyStats{Mean: Milliseconds(sum / time.Duration(max(len(s), 1))), Percentiles: s.Summarize()}
}

func (l LatencyStats) String() string { return fmt.Sprintf("mean %.3f  %v", l.Mean, l.Percentiles) }

// Median returns the middle one of the values, which it sorts. There has to be one.
func Median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
