package sched

import (
	"container/heap"
	"context"
	"math"
	"math/rand/v2"
)

// schedSim is a discrete-event simulation of workers with slots on a machine with CPUs. Times are seconds, as floats.
//
// Requests compute in infinitely short turns (processor sharing) on two levels. The held locks share the CPUs, and the
// requests of a worker that compute share its lock. A worker has one lock (that of the interpreter). Without --gvl each
// request has its own lock. A lock never has more than one CPU.
//
// Two kinds of virtual time make the cost of each event logarithmic. V is the CPU time of each held lock since the
// start. It grows at the rate min(1, CPUs / held locks), so that a change of the rate changes no order. Within a lock,
// had is the part of each of its requests.
type schedSim struct {
	o      *schedOptions
	cell   schedCell
	policy schedPolicy
	load   *schedLoad
	rnd    *rand.Rand // for the policy

	slotsShort bool // the oracle's second bound

	now, v   float64
	rate     float64   // of v
	locks    lockHeap  // held locks
	events   eventHeap // all events except for ends of computing
	seq      uint64
	workers  []schedWorker
	idle     int // workers with nothing in flight
	inFlight int

	next    int // the next request to arrive
	done    int
	spare   []*schedJob
	took    []float64 // latencies of measured requests
	shared  int       // of these: a busy worker got them while another was idle
	clients int       // closed loop
	round   int       // closed loop: remaining requests of this run
	running int       // closed loop: clients that wait for a response
}

// schedCell is one simulation: workers with slots, a load and a policy.
type schedCell struct {
	workers, slots int
	load           float64
	policy         string
}

type schedWorker struct {
	inFlight int
	lock     schedLock
}

// schedJob is a request.
type schedJob struct {
	number int
	came   float64
	parts  [3]float64 // computing, waiting for I/O, computing
	phase  int
	worker int
	end    float64   // of its computing, in the lock's virtual time
	own    schedLock // without --gvl
}

// schedLock is the lock that its jobs share.
type schedLock struct {
	jobs  []*schedJob
	had   float64 // CPU time of each of jobs, as of V = at
	at    float64
	ends  float64 // V at which the first job has finished
	index int     // in the heap
}

// schedPolicy chooses workers. It gets all events and starts requests with start, all on one goroutine.
type schedPolicy interface {
	arrive(s *schedSim, j *schedJob)
	leave(s *schedSim, j *schedJob) // j.worker has one request less
	wake(s *schedSim, what int)     // an event of at
}

// schedLoad is the sequence of requests, the same for all policies. Each request has a gap before it (open) and a size.
type schedLoad struct {
	gaps, sizes []float64 // with mean 1
	warm        int       // number of requests before the measured ones
	measured    int
}

// schedWarm and schedTail are the shares of requests before and after the measured ones, so that these start and end
// among others.
const schedWarm, schedTail = 0.1, 0.1

func newSchedLoad(o *schedOptions) *schedLoad {
	l := &schedLoad{warm: int(schedWarm * float64(o.requests)), measured: o.requests}
	n := l.warm + l.measured + int(schedTail*float64(o.requests))
	rnd := rand.New(rand.NewPCG(o.seed, 0))
	l.gaps, l.sizes = make([]float64, n), make([]float64, n)
	for i := range n {
		l.gaps[i], l.sizes[i] = rnd.ExpFloat64(), o.size(rnd)
	}
	return l
}

// simulate runs a simulation.
func (o *schedOptions) simulate(ctx context.Context, cell schedCell, load *schedLoad) (*schedSim, error) {
	s := newSchedSim(o, cell, load, false)
	if err := s.run(ctx); err != nil || cell.policy != schedOracle {
		return s, err
	}
	other := newSchedSim(o, cell, load, true)
	if err := other.run(ctx); err != nil || s.mean() > other.mean() {
		return s, err
	}
	return other, nil
}

// mean returns the mean of the measured latencies in seconds.
func (s *schedSim) mean() float64 {
	sum := 0.0
	for _, t := range s.took {
		sum += t
	}
	return sum / float64(len(s.took))
}

func newSchedSim(o *schedOptions, cell schedCell, load *schedLoad, slotsShort bool) *schedSim {
	s := &schedSim{o: o, cell: cell, load: load, rate: 1, slotsShort: slotsShort,
		workers: make([]schedWorker, cell.workers), idle: cell.workers, took: make([]float64, 0, load.measured)}
	stream := uint64(1)
	for _, b := range []byte(cell.policy) {
		stream = stream*31 + uint64(b)
	}
	s.rnd = rand.New(rand.NewPCG(o.seed, stream))
	kind, _, _ := findPolicy(cell.policy)
	s.policy = kind.make(s)
	return s
}

// The kinds of events other than the end of computing.
const (
	eventArrival = iota
	eventIO      // a request has finished waiting for I/O
	eventWake    // of the policy
)

type schedEvent struct {
	at   float64
	seq  uint64
	kind int
	job  *schedJob
	what int
}

// run simulates until all requests have ended.
func (s *schedSim) run(ctx context.Context) error {
	s.begin()
	for steps := 0; s.done < len(s.load.sizes); steps++ {
		if steps%10_000 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		computed := math.Inf(1)
		if len(s.locks) > 0 {
			computed = s.now + (s.locks[0].ends-s.v)/s.rate
		}
		if len(s.events) > 0 && s.events[0].at < computed {
			s.step(s.events.pop())
			continue
		}
		s.now, s.v = max(computed, s.now), s.locks[0].ends
		s.computed(s.locks[0])
	}
	return nil
}

func (s *schedSim) step(e schedEvent) {
	s.v += float64((e.at - s.now) * s.rate)
	s.now = e.at
	switch e.kind {
	case eventArrival:
		s.arrive()
	case eventIO:
		s.proceed(e.job)
	case eventWake:
		s.policy.wake(s, e.what)
	}
}

func (s *schedSim) push(e schedEvent) {
	s.seq++
	e.seq = s.seq
	s.events.push(e)
}

// at schedules an event of the policy. It cannot be cancelled: the policy has to know whether it still matters.
func (s *schedSim) at(when float64, what int) {
	s.push(schedEvent{at: max(when, s.now), kind: eventWake, what: what})
}

// begin schedules the first requests.
func (s *schedSim) begin() {
	if !s.o.closed {
		s.push(schedEvent{at: s.load.gaps[0] / s.o.rate(s.cell), kind: eventArrival})
		return
	}
	s.clients = s.o.clients(s.cell)
	s.beginRun()
}

// beginRun starts a run of the closed loop with all clients at once, like `ab -n 20*i -c i`.
func (s *schedSim) beginRun() {
	s.round = schedRound * s.clients
	for range s.clients {
		s.round--
		s.push(schedEvent{at: s.now, kind: eventArrival})
	}
	s.running = s.clients
}

// schedRound is the number of requests of a client of the closed loop in a run.
const schedRound = 20

// arrive handles the arrival of the next request.
func (s *schedSim) arrive() {
	if s.next == len(s.load.sizes) {
		return // a run of the closed loop that is longer than the rest of the load
	}
	j := new(schedJob)
	if n := len(s.spare); n > 0 {
		j, s.spare = s.spare[n-1], s.spare[:n-1]
	}
	computing := s.load.sizes[s.next] * s.o.service.Seconds() * s.o.cpu
	*j = schedJob{number: s.next, came: s.now, own: schedLock{jobs: j.own.jobs[:0]}}
	j.parts = [3]float64{computing, s.load.sizes[s.next] * s.o.service.Seconds() * (1 - s.o.cpu), 0}
	if s.o.cpu < 1 {
		j.parts[0], j.parts[2] = computing/2, computing/2
	}
	s.next++
	if !s.o.closed && s.next < len(s.load.gaps) {
		s.push(schedEvent{at: s.now + s.load.gaps[s.next]/s.o.rate(s.cell), kind: eventArrival})
	}
	s.policy.arrive(s, j)
}

// start gives a request to a worker, which has a free slot.
func (s *schedSim) start(j *schedJob, worker int) {
	w := &s.workers[worker]
	if w.inFlight == 0 {
		s.idle--
	} else if s.idle > 0 && s.counts(j) {
		s.shared++
	}
	if w.inFlight >= s.cell.slots {
		panic("sched: a worker got more requests than it has slots")
	}
	w.inFlight++
	s.inFlight++
	j.worker, j.phase = worker, -1
	s.proceed(j)
}

// counts reports whether a request is measured.
func (s *schedSim) counts(j *schedJob) bool {
	return j.number >= s.load.warm && j.number < s.load.warm+s.load.measured
}

// proceed starts the next part of a request that takes time, or ends the request.
func (s *schedSim) proceed(j *schedJob) {
	for j.phase++; j.phase < len(j.parts); j.phase++ {
		switch work := j.parts[j.phase]; {
		case work <= 0:
		case j.phase == 1:
			s.push(schedEvent{at: s.now + work, kind: eventIO, job: j})
			return
		default:
			s.compute(j, work)
			return
		}
	}
	s.end(j)
}

func (s *schedSim) end(j *schedJob) {
	w := &s.workers[j.worker]
	w.inFlight--
	s.inFlight--
	if w.inFlight == 0 {
		s.idle++
	}
	s.policy.leave(s, j)
	s.answer(j)
}

// answer ends a request and forgets it.
func (s *schedSim) answer(j *schedJob) {
	s.done++
	if s.counts(j) {
		s.took = append(s.took, s.now-j.came)
	}
	s.spare = append(s.spare, j)
	if s.o.closed {
		s.again()
	}
}

// again starts the next request of a client, in the next run if this one has ended.
func (s *schedSim) again() {
	if s.round > 0 {
		s.round--
		s.push(schedEvent{at: s.now, kind: eventArrival})
	} else if s.running--; s.running == 0 {
		s.beginRun()
	}
}

// compute makes a request use its lock.
func (s *schedSim) compute(j *schedJob, work float64) {
	l := &s.workers[j.worker].lock
	if !s.o.gvl {
		l = &j.own
	}
	if len(l.jobs) == 0 {
		l.had, l.at = 0, s.v
	}
	l.catchUp(s.v)
	j.end = l.had + work
	l.jobs = append(l.jobs, j)
	l.schedule()
	if len(l.jobs) > 1 {
		heap.Fix(&s.locks, l.index)
		return
	}
	heap.Push(&s.locks, l)
	s.held()
}

// computed ends the computing of the first of a lock's requests.
func (s *schedSim) computed(l *schedLock) {
	first := 0
	for i, j := range l.jobs {
		if j.end < l.jobs[first].end {
			first = i
		}
	}
	j := l.jobs[first]
	l.had, l.at = j.end, s.v
	l.jobs = append(l.jobs[:first], l.jobs[first+1:]...)
	if len(l.jobs) > 0 {
		l.schedule()
		heap.Fix(&s.locks, l.index)
	} else {
		heap.Remove(&s.locks, l.index)
		s.held()
	}
	s.proceed(j)
}

// held sets the rate at which held locks get CPU time.
func (s *schedSim) held() {
	s.rate = min(1, float64(s.o.cpus)/float64(max(len(s.locks), 1)))
}

func (l *schedLock) catchUp(v float64) {
	if n := len(l.jobs); n > 0 {
		l.had += (v - l.at) / float64(n)
	}
	l.at = v
}

func (l *schedLock) schedule() {
	end := math.Inf(1)
	for _, j := range l.jobs {
		end = min(end, j.end)
	}
	l.ends = l.at + float64((end-l.had)*float64(len(l.jobs)))
}

type lockHeap []*schedLock

func (h lockHeap) Len() int           { return len(h) }
func (h lockHeap) Less(a, b int) bool { return h[a].ends < h[b].ends }
func (h lockHeap) Swap(a, b int) {
	h[a], h[b] = h[b], h[a]
	h[a].index, h[b].index = a, b
}
func (h *lockHeap) Push(x any) {
	l := x.(*schedLock)
	l.index = len(*h)
	*h = append(*h, l)
}
func (h *lockHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	*h = old[:len(old)-1]
	return l
}

// eventHeap has the earliest event first, and of simultaneous events the one that was scheduled first. It does not use
// container/heap, which allocates for each event.
type eventHeap []schedEvent

func (h eventHeap) before(a, b int) bool {
	if h[a].at < h[b].at || h[b].at < h[a].at {
		return h[a].at < h[b].at
	}
	return h[a].seq < h[b].seq
}

func (h *eventHeap) push(e schedEvent) {
	*h = append(*h, e)
	q := *h
	for i := len(q) - 1; i > 0 && q.before(i, (i-1)/2); i = (i - 1) / 2 {
		q[i], q[(i-1)/2] = q[(i-1)/2], q[i]
	}
}

func (h *eventHeap) pop() schedEvent {
	q := *h
	first, last := q[0], len(q)-1
	q[0], q[last] = q[last], schedEvent{}
	q = q[:last]
	*h = q
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(q); child++ {
			if q.before(child, least) {
				least = child
			}
		}
		if least == i {
			return first
		}
		q[i], q[least] = q[least], q[i]
		i = least
	}
}
