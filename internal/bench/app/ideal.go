package app

import (
	"container/heap"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// ideal returns the latencies of the same arrivals with ideal workers. Each worker serves one request at a time, in the
// service time, and each request takes the first free worker. If all requests are alike, no scheduler without knowledge
// of the future is faster.
func ideal(due []time.Duration, workers int, service time.Duration) loadgen.Samples {
	free := make(instants, workers) // when each worker is free; zero values are a heap
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
