package sched

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// The policies of `packhorse-bench lab sched`.
const (
	schedRandom     = "random"
	schedRoundRobin = "round-robin"
	schedTwoChoices = "two-choices"
	schedPumaDelay  = "puma-delay"
	schedLeastBusy  = "least-busy"
	schedPackhorse  = "packhorse"
	schedSomeSlots  = "packhorse:N" // with a number of slots for N
	schedOracle     = "oracle"
)

// schedKind is a policy.
type schedKind struct {
	name, does string
	usual      bool // without --policies
	make       func(s *schedSim) schedPolicy
}

// schedPolicies are all policies.
func schedPolicies() []schedKind {
	return []schedKind{
		{schedRandom, "one accept queue; each free slot is as likely to take the next request", true, newRandom},
		{schedRoundRobin, "a queue for each worker; one after the other gets a request", true, newRoundRobin},
		{schedTwoChoices, "a queue for each worker; of two at random, that with fewer requests", true, newTwoChoices},
		{schedPumaDelay, "one accept queue; a busy worker waits for --delay, or one of its ends, before it takes a request",
			true, newPumaDelay},
		{schedLeastBusy, "a queue for each worker; that with the fewest requests, among equals the longest not chosen", true,
			newLeastBusy},
		{schedPackhorse, "the gateway's own scheduler", true, newPackhorse},
		{schedSomeSlots, "the same with N of the slots: packhorse:1 gives a worker one request at a time", false,
			newPackhorse},
		{schedOracle, "the bound: knows all durations, may stop and move requests", true, newOracle},
	}
}

// findPolicy returns a policy by its name, and the slots that the name limits it to, or 0.
func findPolicy(name string) (kind schedKind, slots int, ok bool) {
	if before, number, cut := strings.Cut(name, ":"); cut && before == schedPackhorse {
		if n, err := strconv.Atoi(number); err == nil && n > 0 && n <= maxSchedSlots {
			name, slots = schedSomeSlots, n
		}
	}
	i := slices.IndexFunc(schedPolicies(), func(k schedKind) bool { return k.name == name })
	if i < 0 || name == schedSomeSlots && slots == 0 {
		return schedKind{}, 0, false
	}
	return schedPolicies()[i], slots, true
}

// fifo is a queue.
type fifo struct {
	jobs []*schedJob
	head int
}

func (f *fifo) len() int { return len(f.jobs) - f.head }

func (f *fifo) push(j *schedJob) { f.jobs = append(f.jobs, j) }

func (f *fifo) pop() *schedJob {
	j := f.jobs[f.head]
	f.jobs[f.head] = nil
	if f.head++; f.head == len(f.jobs) {
		f.jobs, f.head = f.jobs[:0], 0
	}
	return j
}

// randomAccept is a socket on which the slots of all workers wait. Each free slot is equally likely to get the next
// connection.
type randomAccept struct{ queue fifo }

func newRandom(*schedSim) schedPolicy { return new(randomAccept) }

func (p *randomAccept) arrive(s *schedSim, j *schedJob) {
	free := s.cell.workers*s.cell.slots - s.inFlight
	if free == 0 {
		p.queue.push(j)
		return
	}
	nth := s.rnd.IntN(free)
	for i := range s.workers {
		if nth -= s.cell.slots - s.workers[i].inFlight; nth < 0 {
			s.start(j, i)
			return
		}
	}
}

func (p *randomAccept) leave(s *schedSim, j *schedJob) {
	if p.queue.len() > 0 {
		s.start(p.queue.pop(), j.worker)
	}
}

func (p *randomAccept) wake(*schedSim, int) {}

// pushing assigns each request to a worker on arrival. The request waits there if all slots are taken.
type pushing struct {
	queues []fifo
	has    []int    // in flight and queued
	last   []uint64 // time of its last choice
	turn   uint64
	choose func(s *schedSim, p *pushing) int
}

func newPushing(s *schedSim, choose func(s *schedSim, p *pushing) int) *pushing {
	return &pushing{queues: make([]fifo, s.cell.workers), has: make([]int, s.cell.workers),
		last: make([]uint64, s.cell.workers), choose: choose}
}

func newRoundRobin(s *schedSim) schedPolicy {
	return newPushing(s, func(_ *schedSim, p *pushing) int { return int((p.turn - 1) % uint64(len(p.has))) })
}

func newTwoChoices(s *schedSim) schedPolicy {
	return newPushing(s, func(s *schedSim, p *pushing) int {
		if len(p.has) == 1 {
			return 0
		}
		a, b := s.rnd.IntN(len(p.has)), s.rnd.IntN(len(p.has)-1)
		if b >= a {
			b++
		}
		if p.has[b] < p.has[a] {
			return b
		}
		return a
	})
}

func newLeastBusy(s *schedSim) schedPolicy {
	return newPushing(s, func(_ *schedSim, p *pushing) int {
		best := 0
		for i := range p.has {
			if cmp.Or(cmp.Compare(p.has[i], p.has[best]), cmp.Compare(p.last[i], p.last[best])) < 0 {
				best = i
			}
		}
		return best
	})
}

func (p *pushing) arrive(s *schedSim, j *schedJob) {
	p.turn++
	w := p.choose(s, p)
	p.last[w] = p.turn
	p.has[w]++
	if s.workers[w].inFlight < s.cell.slots {
		s.start(j, w)
	} else {
		p.queues[w].push(j)
	}
}

func (p *pushing) leave(s *schedSim, j *schedJob) {
	p.has[j.worker]--
	if q := &p.queues[j.worker]; q.len() > 0 {
		s.start(q.pop(), j.worker)
	}
}

func (p *pushing) wake(*schedSim, int) {}

// pumaDelay is a Puma cluster with wait_for_less_busy_worker, in which all workers watch one socket. An idle worker
// accepts a connection at once. A busy worker first waits for a moment, or for the end of one of its requests, and then
// takes the oldest connection if there is one. A full worker waits for a free slot.
type pumaDelay struct {
	queue  fifo
	states []pumaState
	delays []int // number of delays of each worker, to identify the current timer
	order  []int
}

type pumaState int

const (
	pumaWatching pumaState = iota
	pumaDelaying
	pumaFull
)

func newPumaDelay(s *schedSim) schedPolicy {
	return &pumaDelay{states: make([]pumaState, s.cell.workers), delays: make([]int, s.cell.workers),
		order: make([]int, s.cell.workers)}
}

func (p *pumaDelay) arrive(s *schedSim, j *schedJob) {
	p.queue.push(j)
	for i := range p.order {
		p.order[i] = i
	}
	s.rnd.Shuffle(len(p.order), func(a, b int) { p.order[a], p.order[b] = p.order[b], p.order[a] })
	slices.SortStableFunc(p.order, func(a, b int) int { // idle workers are the first at the socket
		return cmp.Compare(min(s.workers[a].inFlight, 1), min(s.workers[b].inFlight, 1))
	})
	for _, w := range p.order {
		if p.states[w] == pumaWatching {
			p.look(s, w)
		}
	}
}

// look lets a worker that is not in a delay react to a waiting connection.
func (p *pumaDelay) look(s *schedSim, w int) {
	for {
		switch in := s.workers[w].inFlight; {
		case in == s.cell.slots:
			p.states[w] = pumaFull
			return
		case p.queue.len() == 0:
			p.states[w] = pumaWatching
			return
		case in > 0:
			p.states[w] = pumaDelaying
			p.delays[w]++
			s.at(s.now+s.o.delay.Seconds(), p.delays[w]*s.cell.workers+w)
			return
		}
		s.start(p.queue.pop(), w)
	}
}

// accept ends a worker's delay.
func (p *pumaDelay) accept(s *schedSim, w int) {
	p.states[w] = pumaWatching
	if p.queue.len() > 0 {
		s.start(p.queue.pop(), w)
	}
	p.look(s, w)
}

func (p *pumaDelay) leave(s *schedSim, j *schedJob) {
	switch p.states[j.worker] {
	case pumaDelaying:
		p.accept(s, j.worker)
	case pumaFull:
		p.look(s, j.worker)
	}
}

func (p *pumaDelay) wake(s *schedSim, what int) {
	if w := what % s.cell.workers; p.states[w] == pumaDelaying && p.delays[w] == what/s.cell.workers {
		p.accept(s, w)
	}
}
