package sched

import (
	"cmp"
	"container/heap"
	"math"
)

// oracle is a bound of what workers with slots can do together: it knows what each request still needs, and always has
// those go on that need least (shortest remaining processing time, Schrage 1968). Locks do not matter to it: whatever
// runs may be stopped, and go on elsewhere, at no cost.
//
// Two things can be short, and each gives a bound of its own; the greater one counts:
//
//   - the CPUs that the workers can keep busy, as if there were slots without end: those compute that need least of
//     computing;
//   - the slots, as if there were CPUs without end: those have a slot that need least in all.
//
// Of fixed durations it is the central queue, first come first served, and no order is better. Else its mean is the
// least, or as good as that: with several CPUs nothing that is simple is proved to be. High percentiles of it are no
// bounds where durations differ: those who need most wait for all.
type oracle struct {
	slots, cpus int
	need        func(*schedJob) float64 // what it still needs of what is short, in s
	in          []*schedJob             // those that have a slot, by what they need
	out         needs                   // those that have none
	at          float64                 // when it was looked at last
	changes     int                     // says which timer counts
}

func newOracle(s *schedSim) schedPolicy {
	p := &oracle{slots: math.MaxInt, cpus: s.o.cores(s.cell),
		need: func(j *schedJob) float64 { return j.parts[0] + j.parts[2] }}
	switch {
	case s.slotsShort:
		p.slots, p.cpus = s.cell.workers*s.cell.slots, math.MaxInt
		p.need = func(j *schedJob) float64 { return j.parts[0] + j.parts[1] + j.parts[2] }
	case s.o.cpu == 1:
		p.slots = p.cpus // who has none of them needs no slot, and heaps are faster
	}
	p.out.need = p.need
	return p
}

// soon is a time in which nothing happens, in s: less is what rounding leaves.
const soon = 1e-10

// settle passes over parts that are done, and tells whether all are. Late in a simulation the clock's own steps are
// longer than soon: what they cannot tell from now is done, too, or the time for it would never come.
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

// admit gives one that came a slot, if need be that of the one that needs most.
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

// goesOn calls f with each that goes on. Those that have slots are in order.
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

// catchUp takes what was done since the last look from what is needed.
func (p *oracle) catchUp(s *schedSim) {
	if passed := s.now - p.at; passed > 0 {
		p.goesOn(func(j *schedJob) { j.parts[j.phase] = max(j.parts[j.phase]-passed, 0) })
	}
	p.at = s.now
	p.sort()
}

// sort brings those that have slots in order. They are nearly so already.
func (p *oracle) sort() {
	for i := 1; i < len(p.in); i++ {
		for k := i; k > 0 && p.need(p.in[k]) < p.need(p.in[k-1]); k-- {
			p.in[k], p.in[k-1] = p.in[k-1], p.in[k]
		}
	}
}

// plan has the oracle woken when the first part of what goes on ends.
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

// needs is a heap of requests: the one that needs least in front.
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
