package app

import (
	"container/heap"
	"math/rand/v2"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// arrivals tells when the requests of an open loop are due. The pattern depends on the seed alone and is stretched by the rate: who is
// asked at another rate meets the same bursts. Not safe for concurrent use.
type arrivals struct {
	gap      float64 // mean seconds from one to the next
	constant bool    // each gap is the mean: bursts, and with them most waiting, are missing
	weights  []int
	total    int
	times    *rand.Rand
	which    *rand.Rand // a stream of its own: weights do not move the times
	at       float64    // seconds
}

// arrival is one request of an open loop.
type arrival struct {
	due  time.Duration // from the start
	path int           // index of its weight
}

func newArrivals(rate float64, constant bool, seed uint64, weights []int) *arrivals {
	a := &arrivals{gap: 1 / rate, constant: constant, weights: weights,
		times: rand.New(rand.NewPCG(seed, 1)), which: rand.New(rand.NewPCG(seed, 2))}
	for _, w := range weights {
		a.total += w
	}
	return a
}

// next is the arrival after the last one. Times between Poisson arrivals are independent and exponential.
func (a *arrivals) next() arrival {
	gap := 1.0
	if !a.constant {
		gap = a.times.ExpFloat64()
	}
	a.at += gap * a.gap
	return arrival{due: time.Duration(a.at * 1e9), path: a.pick()}
}

// pick is a path at random, by weight.
func (a *arrivals) pick() int {
	n := a.which.IntN(a.total)
	for i, w := range a.weights {
		if n -= w; n < 0 {
			return i
		}
	}
	return len(a.weights) - 1
}

// ideal is what the same arrivals would have taken if each of the workers served one request at a time, each in the same time, and every
// request took the first that is free: for requests that are alike nothing that cannot look ahead is faster.
func ideal(due []time.Duration, workers int, service time.Duration) loadgen.Samples {
	free := make(instants, workers) // when each worker is: all now, which is a heap
	took := make(loadgen.Samples, 0, len(due))
	for _, at := range due {
		end := max(at, free[0]) + service
		free[0] = end
		heap.Fix(&free, 0)
		took = append(took, end-at)
	}
	return took
}

// instants is a heap of times, the earliest first.
type instants []time.Duration

func (h instants) Len() int           { return len(h) }
func (h instants) Less(i, j int) bool { return h[i] < h[j] }
func (h instants) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *instants) Push(x any)        { *h = append(*h, x.(time.Duration)) }
func (h *instants) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
