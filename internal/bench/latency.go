package bench

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// samples are durations in the order they were measured: all of them, so that percentiles are exact (8 bytes each: a
// million requests are 8 MB). Each worker has its own; not safe for concurrent use.
type samples []time.Duration

// percentiles are milliseconds, by nearest rank: p95 is the smallest sample that at least 95 % of all do not exceed. Of no
// samples all are zero.
type percentiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// summarize sorts s in place.
func (s samples) summarize() percentiles {
	if len(s) == 0 {
		return percentiles{}
	}
	slices.Sort(s)
	return percentiles{P50: ms(s.rank(50)), P95: ms(s.rank(95)), P99: ms(s.rank(99)), Max: ms(s[len(s)-1])}
}

// rank is the nearest-rank percentile of sorted samples.
func (s samples) rank(percent int) time.Duration {
	i := (len(s)*percent + 99) / 100
	return s[max(i, 1)-1]
}

// apdex counts a sample up to t as satisfied, up to 4t as half, and the rest, with failed requests, as nothing.
func (s samples) apdex(t time.Duration, failed int) float64 {
	total := len(s) + failed
	if total == 0 {
		return 0
	}
	score := 0.0
	for _, d := range s {
		switch {
		case d <= t:
			score++
		case d <= 4*t:
			score += 0.5
		}
	}
	return round(score/float64(total), 4)
}

func (p percentiles) String() string {
	return fmt.Sprintf("p50 %.3f  p95 %.3f  p99 %.3f  max %.3f ms", p.P50, p.P95, p.P99, p.Max)
}

func ms(d time.Duration) float64 { return round(float64(d)/1e6, 3) }

// round keeps reports readable: a fixed number of decimals.
func round(x float64, decimals int) float64 {
	scale := math.Pow10(decimals)
	return math.Round(x*scale) / scale
}

// rate is n per unit over a time; zero for no time.
func rate(n, unit float64, over time.Duration) float64 {
	if over <= 0 {
		return 0
	}
	return n / unit / over.Seconds()
}
