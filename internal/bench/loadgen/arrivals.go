package loadgen

import (
	"math/rand/v2"
	"time"
)

// Arrivals says when the requests of an open loop are due, and which request each is. The pattern depends on the seed
// alone and is stretched by the rate: a server that is asked at another rate meets the same bursts. It is not safe for
// concurrent use.
type Arrivals struct {
	gap      float64 // mean seconds from one request to the next
	constant bool    // each gap is the mean
	weights  []int
	total    int
	times    *rand.Rand
	which    *rand.Rand // a stream of its own: weights do not move the times
	at       float64    // seconds
}

// Arrival is one request of an open loop.
type Arrival struct {
	Due     time.Duration // from the start
	Request int           // index of its weight
}

// NewArrivals returns arrivals at a rate a second whose requests are chosen by weight. The times between them are
// independent and exponential (Poisson arrivals), or all the same.
func NewArrivals(rate float64, constant bool, seed uint64, weights []int) *Arrivals {
	a := &Arrivals{gap: 1 / rate, constant: constant, weights: weights,
		times: rand.New(rand.NewPCG(seed, 1)), which: rand.New(rand.NewPCG(seed, 2))}
	for _, w := range weights {
		a.total += w
	}
	return a
}

// FixedRate returns arrivals of one request, the first at once and then one at each period.
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
	return Arrival{Due: time.Duration(a.at * 1e9), Request: a.Pick()}
}

// Pick returns the index of a request at random, by weight.
func (a *Arrivals) Pick() int {
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
