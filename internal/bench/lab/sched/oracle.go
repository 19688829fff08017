package sched

import (
	"cmp"
	"container/heap"
	"math"
)

// oracle is a bound for workers with slots. It knows the remaining time of each request, and always runs those with the
// shortest remaining time (shortest remaining processing time, Schrage 1968). It ignores locks, and may stop a running
// request and continue it elsewhere at no cost.
//
// Two resources can be scarce, and each gives a bound. The greater one counts:
//
//   - the CPUs that the workers can keep busy, with unlimited slots: the requests with the least remaining computing
//     run;
//   - the slots, with unlimited CPUs: the requests with the least remaining time have a slot.
//
// For fixed durations it is the central queue in order of arrival, and no order is better. Otherwise its mean is close
// to the minimum: no simple policy is proved to be optimal for several CPUs. Its high percentiles are not bounds if
// durations differ, because the longest requests wait for all others.
type oracle struct {
	slots, cpus int
	need        func(*schedJob) float64 // remaining need of the scarce resource, in seconds
	in          []*schedJob             // requests with a slot, by their need
	out         needs                   // requests without a slot
	at          float64                 // time of the last update
	changes     int                     // identifies the current timer
}

func newOracle(s *schedSim) schedPolicy {
	p := &oracle{slots: math.MaxInt, cpus: s.o.cores(s.cell),
		need: func(j *schedJob) float64 { return j.parts[0] + j.parts[2] }}
	switch {
	case s.slotsShort:
		p.slots, p.cpus = s.cell.workers*s.cell.slots, math.MaxInt
		p.need = func(j *schedJob) float64 { return j.parts[0] + j.parts[1] + j.parts[2] }
	case s.o.cpu == 1:
		p.slots = p.cpus // a request without CPU needs no slot, and heaps are faster
	}
	p.out.need = p.need
	return p
}

// soon is the time in seconds below which a duration is a rounding error.
const soon = 1e-10

// settle skips finished parts, and reports whether all parts are finished. Late in a simulation the clock's own steps
// are longer than soon. A part that ends within such a step is also finished, because its end would never come.
func (j *schedJob) settle(now float64) bool {
	least := max(soon, 4*(math.Nextafter(now, math.Inf(1))-now))
	for j.phase < len(j.parts) && j.parts[j.phase] < least {
		j.parts[j.phase] = 0
		j.phase++
	}
	return j.phase == len(j.parts)
}

func (p *oracle) arrive(s *schedSim, j *schedJob) {
	if j.settle(s.now) {
		s.answer(j)
		return
	}
	p.catchUp(s)
	p.admit(j)
	p.plan(s)
}

func (p *oracle) leave(*schedSim, *schedJob) {}

func (p *oracle) wake(s *schedSim, what int) {
	if what != p.changes {
		return
	}
	p.catchUp(s)
	var ended []*schedJob
	keep := p.in[:0]
	for _, j := range p.in {
		if j.settle(s.now) {
			ended = append(ended, j)
		} else {
			keep = append(keep, j)
		}
	}
	clear(p.in[len(keep):])
	p.in = keep
	for len(p.in) < p.slots && len(p.out.jobs) > 0 {
		p.in = append(p.in, heap.Pop(&p.out).(*schedJob))
	}
	for _, j := range ended {
		s.answer(j)
	}
	p.plan(s)
}

// admit gives a new request a slot, possibly that of the request with the greatest need.
func (p *oracle) admit(j *schedJob) {
	if len(p.in) < p.slots {
		p.in = append(p.in, j)
		return
	}
	if most := len(p.in) - 1; p.need(p.in[most]) > p.need(j) {
		j, p.in[most] = p.in[most], j
	}
	heap.Push(&p.out, j)
}

// goesOn calls f for each running request. The requests with slots are in order.
func (p *oracle) goesOn(f func(j *schedJob)) {
	computing := 0
	for _, j := range p.in {
		if j.phase == 1 {
			f(j)
		} else if computing < p.cpus {
			computing++
			f(j)
		}
	}
}

// catchUp subtracts the progress since the last update from the needs.
func (p *oracle) catchUp(s *schedSim) {
	if passed := s.now - p.at; passed > 0 {
		p.goesOn(func(j *schedJob) { j.parts[j.phase] = max(j.parts[j.phase]-passed, 0) })
	}
	p.at = s.now
	p.sort()
}

// sort sorts the requests with slots, which are almost sorted.
func (p *oracle) sort() {
	for i := 1; i < len(p.in); i++ {
		for k := i; k > 0 && p.need(p.in[k]) < p.need(p.in[k-1]); k-- {
			p.in[k], p.in[k-1] = p.in[k-1], p.in[k]
		}
	}
}

// plan schedules an event at the first end of a running part.
func (p *oracle) plan(s *schedSim) {
	p.sort()
	p.changes++
	first := math.Inf(1)
	p.goesOn(func(j *schedJob) {
		first = min(first, j.parts[j.phase])
	})
	if len(p.in) > 0 {
		s.at(s.now+first, p.changes)
	}
}

// needs is a heap of requests with the least need first.
type needs struct {
	jobs []*schedJob
	need func(*schedJob) float64
}

func (h *needs) Len() int { return len(h.jobs) }
func (h *needs) Less(a, b int) bool {
	x, y := h.jobs[a], h.jobs[b]
	return cmp.Or(cmp.Compare(h.need(x), h.need(y)), cmp.Compare(x.number, y.number)) < 0
}
func (h *needs) Swap(a, b int) { h.jobs[a], h.jobs[b] = h.jobs[b], h.jobs[a] }
func (h *needs) Push(x any)    { h.jobs = append(h.jobs, x.(*schedJob)) }
func (h *needs) Pop() any {
	last := len(h.jobs) - 1
	j := h.jobs[last]
	h.jobs[last] = nil
	h.jobs = h.jobs[:last]
	return j
}
