package balance

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"
)

// The simulation of requests to the workers of an application, by the policy that chooses the worker. The requests of
// a worker share one lock (an interpreter's), and so one CPU, in turns. Held locks share the CPUs of the machine in
// turns.

const (
	simCPUs     = 16
	simService  = 100 * time.Millisecond // CPU time of each request
	simRequests = 20_000
	simSeed     = 1
)

// The policies of the simulation.
const (
	policyRandom    = "random"     // one accept queue; each free slot is as likely to take the next request
	policyLeastBusy = "least-busy" // a queue for each worker; the one with the fewest requests gets the next one
	policyPackhorse = "packhorse"  // the Core
)

// simRow is the result for one policy. The names of the fields are those of `make bench-sched`.
type simRow struct {
	Workers    int     `json:"workers"`
	Slots      int     `json:"slots"`
	Policy     string  `json:"policy"`
	Load       float64 `json:"load"` // relative to the capacity of the workers
	Mean       float64 `json:"mean"` // in ms, like the following
	P50        float64 `json:"p50"`
	P95        float64 `json:"p95"`
	P99        float64 `json:"p99"`
	Saturation float64 `json:"saturation"` // the mean divided by the time of a single request
	PerS       float64 `json:"requests_per_s"`
	Shared     int     `json:"shared_while_idle"` // requests that a busy worker got while another was idle
}

// simWorker is a worker with the requests that it computes in turns.
type simWorker struct {
	left  []float64 // seconds of CPU time
	ids   []int     // of the requests
	queue []int     // requests that wait for a slot of this worker
	last  int       // number of its last choice
}

type simulation struct {
	slots   int
	policy  string
	workers []simWorker
	rnd     *rand.Rand
	now     float64
	came    []float64
	took    []float64
	shared  int
	queue   []int // requests that wait for any slot

	core    *Core
	index   map[*Worker]int
	tickets map[int]*Ticket
	waiting map[*Ticket]int
	granted []*Ticket
}

// simulate runs Poisson arrivals of equal requests.
func simulate(workers, slots int, policy string, load float64) simRow {
	s := &simulation{slots: slots, policy: policy, workers: make([]simWorker, workers),
		rnd: rand.New(rand.NewPCG(simSeed, 2)), index: map[*Worker]int{}, tickets: map[int]*Ticket{},
		waiting: map[*Ticket]int{}}
	s.core = NewCore(Limits{Queue: math.MaxInt}, func(t *Ticket) { s.granted = append(s.granted, t) })
	members := make([]Member, workers)
	for i := range members {
		members[i] = Member{Name: fmt.Sprintf("w%04d", i), Slots: slots}
	}
	for i, w := range s.core.Set(0, members) {
		s.index[w] = i
	}
	gaps := rand.New(rand.NewPCG(simSeed, 1))
	rate := load * float64(min(workers, simCPUs)) / simService.Seconds()
	next := gaps.ExpFloat64() / rate
	for done := 0; done < simRequests; {
		share, first, worker := s.share(), math.Inf(1), -1
		for i := range s.workers {
			if w := &s.workers[i]; len(w.left) > 0 {
				if end := slices.Min(w.left) * float64(len(w.left)) / share; end < first {
					first, worker = end, i
				}
			}
		}
		if len(s.came) < simRequests && next-s.now <= first {
			s.pass(next-s.now, share)
			s.came = append(s.came, s.now)
			s.arrive(len(s.came) - 1)
			next += gaps.ExpFloat64() / rate
			continue
		}
		s.pass(first, share)
		s.end(worker)
		done++
	}
	return s.row(load)
}

// share is the CPU time that each worker with requests gets per second.
func (s *simulation) share() float64 {
	busy := 0
	for i := range s.workers {
		if len(s.workers[i].left) > 0 {
			busy++
		}
	}
	return min(1, simCPUs/float64(max(busy, 1)))
}

// pass lets all requests compute for some seconds.
func (s *simulation) pass(seconds, share float64) {
	s.now += seconds
	for i := range s.workers {
		w := &s.workers[i]
		for j := range w.left {
			w.left[j] -= seconds * share / float64(len(w.left))
		}
	}
}

func (s *simulation) time() time.Duration { return time.Duration(s.now * 1e9) }

func (s *simulation) arrive(request int) {
	switch s.policy {
	case policyPackhorse:
		t, err := s.core.Enter(s.time(), Work{})
		if err != nil {
			panic(err) // the queue is unlimited
		}
		s.tickets[request] = t
		if t.Worker() != nil {
			s.start(s.index[t.Worker()], request)
		} else {
			s.waiting[t] = request
		}
	case policyRandom:
		free := 0
		for i := range s.workers {
			free += s.slots - len(s.workers[i].left)
		}
		if free == 0 {
			s.queue = append(s.queue, request)
			return
		}
		nth := s.rnd.IntN(free)
		for i := range s.workers {
			if nth -= s.slots - len(s.workers[i].left); nth < 0 {
				s.start(i, request)
				return
			}
		}
	default:
		best := 0
		for i := range s.workers {
			a, b := &s.workers[i], &s.workers[best]
			if n, m := len(a.left)+len(a.queue), len(b.left)+len(b.queue); n < m || n == m && a.last < b.last {
				best = i
			}
		}
		w := &s.workers[best]
		if w.last = request; len(w.left) < s.slots {
			s.start(best, request)
		} else {
			w.queue = append(w.queue, request)
		}
	}
}

func (s *simulation) start(worker, request int) {
	w := &s.workers[worker]
	isIdle := func(w simWorker) bool { return len(w.left) == 0 }
	if len(w.left) > 0 && slices.ContainsFunc(s.workers, isIdle) {
		s.shared++
	}
	if len(w.left) == s.slots {
		panic("a worker got more requests than it has slots")
	}
	w.left, w.ids = append(w.left, simService.Seconds()), append(w.ids, request)
}

// end ends the request of a worker that has computed enough.
func (s *simulation) end(worker int) {
	w := &s.workers[worker]
	at := slices.Index(w.left, slices.Min(w.left))
	request := w.ids[at]
	w.left, w.ids = slices.Delete(w.left, at, at+1), slices.Delete(w.ids, at, at+1)
	s.took = append(s.took, s.now-s.came[request])
	switch {
	case s.policy == policyPackhorse:
		t := s.tickets[request]
		delete(s.tickets, request)
		s.core.Leave(s.time(), t, OK)
		for _, t := range s.granted {
			s.start(s.index[t.Worker()], s.waiting[t])
			delete(s.waiting, t)
		}
		s.granted = s.granted[:0]
	case len(s.queue) > 0:
		s.start(worker, s.queue[0])
		s.queue = s.queue[1:]
	case len(w.queue) > 0:
		s.start(worker, w.queue[0])
		w.queue = w.queue[1:]
	}
}

// row returns the result. The first and the last tenth of the requests do not count.
func (s *simulation) row(load float64) simRow {
	took := slices.Clone(s.took[simRequests/10 : simRequests-simRequests/10])
	slices.Sort(took)
	sum := 0.0
	for _, t := range took {
		sum += t
	}
	round := func(x float64) float64 { return math.Round(x*1e3) / 1e3 }
	rank := func(percent int) float64 { return round(1e3 * took[(len(took)*percent+99)/100-1]) }
	mean := sum / float64(len(took))
	return simRow{Workers: len(s.workers), Slots: s.slots, Policy: s.policy, Load: load, Mean: round(1e3 * mean),
		P50: rank(50), P95: rank(95), P99: rank(99), Saturation: round(mean / simService.Seconds()),
		PerS: round(simRequests / s.now), Shared: s.shared}
}

// TestSimulation checks the simulation with M/D/1 queues, and the result of a study of Puma. With a lock and several
// slots, accepting at random costs a fifth of the latency at a load of 40 %, and more with more slots.
func TestSimulation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		workers, slots int
		policy         string
		load           float64
		low, high      float64 // of the saturation
	}{
		{1, 1, policyRandom, 0.6, 1.70, 1.80},      // M/D/1: 1 + 0.6/(2*0.4)
		{1, 1, policyPackhorse, 0.6, 1.70, 1.80},   // the same
		{1, 100, policyLeastBusy, 0.6, 2.35, 2.65}, // M/D/1 with processor sharing: 1/0.4
		{16, 2, policyRandom, 0.4, 1.17, 1.26},
		{16, 4, policyRandom, 0.4, 1.35, 1.43},
		{30, 1, policyRandom, 0.4, 1, 1.001},
		{16, 2, policyLeastBusy, 0.4, 1, 1.01},
		{16, 4, policyPackhorse, 0.4, 1, 1.01},
	} {
		got := simulate(c.workers, c.slots, c.policy, c.load)
		if got.Saturation < c.low || got.Saturation > c.high || c.policy != policyRandom && got.Shared > 0 && c.workers > 1 {
			t.Errorf("%d workers, %d slots: got %+v, want a saturation from %v to %v", c.workers, c.slots, got, c.low, c.high)
		}
	}
}

// BenchmarkSchedule simulates the configurations of the study at loads from 10 to 100 %. It writes a report to the file
// in PACKHORSE_REPORT, if that is set (`make bench-sched`).
func BenchmarkSchedule(b *testing.B) {
	report := struct {
		CPUs         int      `json:"cpus"`
		GVL          bool     `json:"gvl"`
		Arrivals     string   `json:"arrivals"`
		ServiceMS    float64  `json:"service_ms"`
		Distribution string   `json:"distribution"`
		CPU          float64  `json:"cpu"`
		Requests     int      `json:"requests"`
		Seed         uint64   `json:"seed"`
		Rows         []simRow `json:"rows"`
	}{simCPUs, true, "open", simService.Seconds() * 1e3, "fixed", 1, simRequests, simSeed, nil}
	for _, shape := range [][2]int{{14, 4}, {18, 2}, {25, 2}, {30, 1}, {16, 2}, {8, 4}, {16, 4}} {
		for _, policy := range []string{policyRandom, policyLeastBusy, policyPackhorse} {
			b.Run(fmt.Sprintf("workers=%d/slots=%d/%s", shape[0], shape[1], policy), func(b *testing.B) {
				var rows []simRow
				for b.Loop() {
					rows = nil
					for load := 1; load <= 10; load++ {
						rows = append(rows, simulate(shape[0], shape[1], policy, float64(load)/10))
					}
				}
				report.Rows = append(report.Rows, rows...)
				b.ReportMetric(rows[3].Mean, "mean-ms-at-0.4")
				b.ReportMetric(rows[3].P99, "p99-ms-at-0.4")
			})
		}
	}
	if file := os.Getenv("PACKHORSE_REPORT"); file != "" {
		text, err := json.MarshalIndent(report, "", "  ")
		if err == nil {
			err = os.WriteFile(file, append(text, '\n'), 0o666)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
