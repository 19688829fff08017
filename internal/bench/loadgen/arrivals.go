package loadgen

import (
	"math/rand/v2"
	"time"
)

// Arrivals generates the times of the requests of an open loop, and chooses each request. The pattern depends only on
// the seed and is stretched by the rate, so a server meets the same bursts at every rate. Not safe for concurrent use.
type Arrivals struct {
	closed   bool    // a closed loop: no times
	gap      float64 // mean seconds from one request to the next
	constant bool    // each gap is the mean
	weights  []int
	total    int
	times    *rand.Rand
	which    *rand.Rand // weights do not change the times
	at       float64    // seconds
}

// Arrival is the time of one request of an open loop.
type Arrival struct {
	Due     time.Duration // from the start
	Request int           // index in the weights
}

// NewArrivals returns arrivals at a rate in requests per second. The weights choose the requests. The times between
// arrivals are constant, or independent and exponential (Poisson arrivals). A rate of 0 is a closed loop.
func NewArrivals(rate float64, constant bool, seed uint64, weights []int) *Arrivals {
	a := &Arrivals{closed: rate == 0, gap: 1 / max(rate, 1e-9), constant: constant, weights: weights,
		times: rand.New(rand.NewPCG(seed, 1)), which: rand.New(rand.NewPCG(seed, 2))}
	for _, w := range weights {
		a.total += w
	}
	return a
}

// FixedRate returns arrivals of one request, the first at once and then one at each period. A rate of 0 is a closed
// loop.
func FixedRate(rate float64) *Arrivals {
	a := NewArrivals(rate, true, 0, []int{1})
	a.at = -a.gap
	return a
}

// Next returns the arrival after the last one.
func (a *Arrivals) Next() Arrival {
	gap := 1.0
	if !a.constant {
		gap = a.times.ExpFloat64()
	}
	a.at += gap * a.gap
	return Arrival{Due: time.Duration(a.at * 1e9), Request: a.pick()}
}

// pick returns the index of a request at random, by weight.
func (a *Arrivals) pick() int {
	if len(a.weights) == 1 {
		return 0
	}
	n := a.which.IntN(a.total)
	for i, w := range a.weights {
		if n -= w; n < 0 {
			return i
		}
	}
	return len(a.weights) - 1
}
