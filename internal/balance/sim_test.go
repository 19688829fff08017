package balance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// world is workers whose requests need their worker's one processor, or sleep, in turns.
type world struct {
	core    *Core
	now     float64 // seconds
	rand    *rand.Rand
	work    map[*Worker][]*request
	routes  []route
	waits   map[*Ticket]*request
	times   []float64 // that requests took
	shared  int
	limited bool // some may be refused
	refused int
	beside  int    // requests that were given to a busy worker
	clients int    // that ask again; 0: open
	seen    func() // called as work ends
}

type route struct {
	name   string
	share  float64
	cpu    func(r *rand.Rand) float64 // seconds
	sleep  func(r *rand.Rand) float64
	rounds int
}

type request struct {
	ticket *Ticket
	route  *route
	came   float64
	phases []float64 // cpu, sleep, cpu, sleep ...
	at     int
}

func fixed(s float64) func(*rand.Rand) float64 { return func(*rand.Rand) float64 { return s } }

// lognormal has a heavy tail.
func lognormal(mean, sigma float64) func(*rand.Rand) float64 {
	return func(r *rand.Rand) float64 { return mean * math.Exp(sigma*r.NormFloat64()-sigma*sigma/2) }
}

func newWorld(workers, slots int, auto bool, seed uint64, routes ...route) *world {
	w := &world{rand: rand.New(rand.NewPCG(seed, 1)), work: map[*Worker][]*request{}, routes: routes, waits: map[*Ticket]*request{}}
	w.core = NewCore(Limits{Queue: 1 << 20}, func(t *Ticket) { w.begun(t) })
	members := make([]Member, workers)
	for i := range members {
		members[i] = Member{Name: fmt.Sprint(i), Slots: slots, Auto: auto}
	}
	w.core.Set(0, members)
	return w
}

func (w *world) time() time.Duration { return time.Duration(w.now * 1e9) }

func (w *world) arrive() {
	x := w.rand.Float64()
	r := &w.routes[len(w.routes)-1]
	for i := range w.routes {
		if x -= w.routes[i].share; x < 0 {
			r = &w.routes[i]
			break
		}
	}
	q := &request{route: r, came: w.now}
	n := max(r.rounds, 1)
	cpu, sleep := r.cpu(w.rand), r.sleep(w.rand)
	for range n {
		q.phases = append(q.phases, cpu/float64(n), sleep/float64(n))
	}
	t, err := w.core.Enter(w.time(), Work{Route: r.name})
	if w.limited && fault.KindOf(err) == fault.Exhausted {
		w.refused++
		return
	}
	if err != nil {
		panic(err)
	}
	q.ticket = t
	if t.shared {
		w.shared++
	}
	if t.worker != nil {
		w.give(t.worker, q)
	} else {
		w.waits[t] = q
	}
}

func (w *world) begun(t *Ticket) {
	q := w.waits[t]
	delete(w.waits, t)
	if t.shared {
		w.shared++
	}
	w.give(t.worker, q)
}

func (w *world) give(worker *Worker, q *request) {
	if len(w.work[worker]) > 0 {
		w.beside++
	}
	w.work[worker] = append(w.work[worker], q)
}

// run lets so many requests end.
func (w *world) run(n int, rate float64) {
	next := math.Inf(1)
	if w.clients > 0 {
		for range w.clients {
			w.arrive()
		}
	} else {
		next = w.now + w.rand.ExpFloat64()/rate
	}
	for done := 0; done < n; {
		at, first := next, (*request)(nil)
		var on *Worker
		for _, worker := range w.core.list {
			l := w.work[worker]
			k := float64(computing(l))
			for _, q := range l {
				d := q.phases[q.at]
				if q.at%2 == 0 {
					d *= k
				}
				if w.now+d < at {
					at, first, on = w.now+d, q, worker
				}
			}
		}
		if alarm, ok := w.core.Next(w.time()); ok && alarm.Seconds() < at {
			w.pass(max(alarm.Seconds()+1e-9, w.now) - w.now)
			w.core.Wake(w.time())
			continue
		}
		if late, when := w.overdue(); late != nil && when < at {
			w.pass(max(when, w.now) - w.now)
			w.core.Expire(w.time(), late, time.Second)
			delete(w.waits, late)
			w.refused++
			continue
		}
		w.pass(at - w.now)
		if first == nil {
			w.arrive()
			next = w.now + w.rand.ExpFloat64()/rate
			continue
		}
		for first.at++; first.at < len(first.phases) && first.phases[first.at] <= 0; first.at++ {
		}
		if first.at < len(first.phases) {
			continue
		}
		done++
		w.times = append(w.times, w.now-first.came)
		w.work[on] = slices.DeleteFunc(w.work[on], func(q *request) bool { return q == first })
		w.core.Leave(w.time(), first.ticket, OK)
		if w.clients > 0 {
			w.arrive()
		}
		if w.seen != nil {
			w.seen()
		}
	}
}

// overdue is what has waited longest, and when that is too long; nil: nothing waits, or there is no limit.
func (w *world) overdue() (late *Ticket, when float64) {
	limit := w.core.limits.Wait.Seconds()
	if limit <= 0 {
		return nil, 0
	}
	for t, q := range w.waits {
		if at := q.came + limit; late == nil || at < when {
			late, when = t, at
		}
	}
	return late, when
}

func computing(l []*request) (n int) {
	for _, q := range l {
		if q.at%2 == 0 {
			n++
		}
	}
	return n
}

func (w *world) pass(d float64) {
	w.now += d
	for _, l := range w.work {
		k := float64(computing(l))
		for _, q := range l {
			if q.at%2 == 0 {
				q.phases[q.at] -= d / k
			} else {
				q.phases[q.at] -= d
			}
			q.phases[q.at] = max(q.phases[q.at], 0)
		}
	}
}

// figures are of the requests after the first fifth, in milliseconds.
func (w *world) figures() (mean, p95 float64) {
	t := slices.Clone(w.times[len(w.times)/5:])
	slices.Sort(t)
	for _, x := range t {
		mean += x
	}
	n := len(t)
	return mean / float64(n) * 1000, t[n*95/100] * 1000
}

// levelled tells how much of the work ended while workers used so many slots.
func (w *world) levelled(n int, rate float64) (part map[int]float64) {
	part = map[int]float64{}
	w.seen = func() { part[w.core.tuner.limit(slotsOfWorld, 0)] += 1 / float64(n) }
	w.run(n, rate)
	return part
}

const slotsOfWorld = 4

var (
	computes = route{name: "computes", share: 1, cpu: fixed(.036), sleep: fixed(0)}
	sleeps   = route{name: "sleeps", share: 1, cpu: fixed(0), sleep: fixed(.1)}
	mixes    = route{name: "mixes", share: 1, cpu: fixed(.018), sleep: fixed(.018), rounds: 4}
)

func half(r route) route {
	r.share = .5
	return r
}

// TestAuto: by measurement, as many slots are used as is best for the work, or nearly. Figures like these stand in docs/explanation/scheduling.md.
func TestAuto(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		routes []route
		alone  float64 // mean seconds of a worker for itself
		load   float64 // of the workers, if they did one thing at a time
		atMost float64 // times the least mean, and p95, of 1, 2 and 4 slots
	}{
		{"work", []route{computes}, .036, .5, 1.03},
		{"work, busy", []route{computes}, .036, .9, 1.06},
		{"sleep", []route{sleeps}, .1, .8, 1.1},
		{"sleep, too much for one at a time", []route{sleeps}, .1, 1.5, 1.1},
		{"both in one request", []route{mixes}, .036, .8, 1.1},
		{"work and sleep in turns", []route{half(computes), half(sleeps)}, .068, .8, 1.11},
		{"fast and slow work", []route{{name: "fast", share: .9, cpu: fixed(.005), sleep: fixed(0)}, {name: "slow", share: .1, cpu: fixed(.2), sleep: fixed(0)}}, .0245, .7, 1.3},
		{"heavy tail of work", []route{{name: "a", share: 1, cpu: lognormal(.036, 1.5), sleep: fixed(0)}}, .036, .7, 1.1},
		{"heavy tail of sleep", []route{{name: "a", share: 1, cpu: fixed(0), sleep: lognormal(.1, 1.5)}}, .1, .8, 1.1},
	} {
		for _, workers := range []int{2, 16} {
			if workers > 2 && c.load == .5 { // nothing waits
				continue
			}
			t.Run(fmt.Sprint(c.name, " ", workers), func(t *testing.T) {
				const n = 3000
				rate := c.load * float64(workers) / c.alone
				auto := newWorld(workers, slotsOfWorld, true, 1, c.routes...)
				levels := auto.levelled(n, rate)
				mean, p95 := auto.figures()
				text, bestMean, bestP95 := "", math.Inf(1), math.Inf(1)
				for _, slots := range []int{1, 2, 4} {
					w := newWorld(workers, slots, false, 1, c.routes...)
					w.run(n, rate)
					m, p := w.figures()
					bestMean, bestP95 = min(bestMean, m), min(bestP95, p)
					text += fmt.Sprintf(" %.0f / %.0f |", m, p)
					auto.shared += w.shared
				}
				t.Logf("%s auto %.0f / %.0f; slots used %.2v", text, mean, p95, levels)
				if mean > c.atMost*bestMean || p95 > c.atMost*bestP95 {
					t.Errorf("mean %.1f ms, p95 %.1f; it can be %.1f, %.1f", mean, p95, bestMean, bestP95)
				}
				if auto.shared > 0 {
					t.Errorf("%d shared a worker while another was idle", auto.shared)
				}
			})
		}
	}
}

// knowing is two workers that compute, have half of what they can do, and know that sharing gains nothing.
func knowing(seed uint64) (w *world, rate float64) {
	w, rate = newWorld(2, 2, true, seed, computes), .5*2/.036
	w.run(2000, rate)
	return w, rate
}

// TestAutoTriesLittle: where it is known that sharing gains nothing, and no more waits than runs, hardly anybody shares for a trial: two requests take longer for
// each.
func TestAutoTriesLittle(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		w, rate := knowing(seed + 1)
		for range 8 {
			w.beside = 0
			w.run(500, rate)
			if w.beside > 12 {
				t.Errorf("seed %d: %d of 500 shared a worker", seed+1, w.beside)
			}
		}
	}
}

// TestAutoBurst: where sharing is known to gain nothing, a burst is no reason to share.
func TestAutoBurst(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		w, rate := knowing(seed + 1)
		for range 8 {
			w.run(400, rate)
			w.beside = 0
			for range 60 {
				w.arrive()
			}
			w.run(200, rate)
			if w.beside > 20 {
				t.Errorf("seed %d: %d of 200 shared a worker", seed+1, w.beside)
			}
		}
	}
}

// TestAutoSpared: slots in reserve leave a worker idle, and routes may all be new: more slots are used all the same when one at a time is too little.
func TestAutoSpared(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		reserve int
		fresh   bool
	}{{"reserve", 1, false}, {"new routes", 0, true}} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(4, slotsOfWorld, true, 1, computes)
			w.core.Limit(0, Limits{Queue: 1 << 20, Reserve: c.reserve})
			w.run(2000, .5*3/.036)
			w.routes = []route{sleeps}
			if c.fresh {
				n := 0
				w.routes[0].sleep = func(*rand.Rand) float64 { // as it arrives
					n++
					w.routes[0].name = fmt.Sprint("route ", n)
					return .1
				}
			}
			const rate = 60
			w.run(2000, rate)
			w.times = nil
			w.run(2000, rate)
			if mean, p95 := w.figures(); mean > 200 {
				t.Errorf("mean %.0f ms, p95 %.0f where each takes 100", mean, p95)
			}
		})
	}
}

// TestAutoSparedAfterPress: with a slot in reserve a trial has hardly two at one worker, and so tells nothing; what waits is found all the same, also where sharing
// gained nothing before.
func TestAutoSparedAfterPress(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		for _, load := range []float64{.97, 1.05, 1.2} {
			w := newWorld(4, slotsOfWorld, true, seed+1, computes)
			w.core.Limit(0, Limits{Queue: 1 << 20, Reserve: AutoReserve})
			w.run(2500, load*3/.036)
			w.routes = []route{sleeps}
			w.run(3000, 70)
			w.times = nil
			w.run(1000, 70)
			if mean, p95 := w.figures(); mean > 200 {
				t.Errorf("seed %d, load %.2f: mean %.0f ms, p95 %.0f where each takes 100", seed+1, load, mean, p95)
			}
		}
	}
}

// TestAutoShortQueue: a queue that is too short for much to wait is full instead, or its wait too long: what is refused counts more than what waits, and than what
// is known of sharing.
func TestAutoShortQueue(t *testing.T) {
	t.Parallel()
	mixed := []route{{name: "short", share: .9, cpu: fixed(0), sleep: fixed(.005)}, {name: "long", share: .1, cpu: fixed(0), sleep: fixed(2)}}
	for _, limits := range []Limits{{Queue: 0}, {Queue: 2}, {Queue: 16}, {Queue: 1000, Wait: 100 * time.Millisecond}, {Queue: 1000, Wait: time.Second}} {
		for seed := range uint64(4) {
			w := newWorld(4, slotsOfWorld, true, seed+1, computes)
			w.limited = true
			w.core.Limit(0, limits)
			check := func(what string, before, n int, rate float64) {
				w.run(before, rate)
				w.refused = 0
				w.run(n, rate)
				if w.refused > n/50 {
					t.Errorf("queue %d, wait %s, seed %d, %s: %d of %d were refused; they use %d of %d slots", limits.Queue, limits.Wait, seed+1, what, w.refused, n, w.core.tuner.limit(slotsOfWorld, 0), slotsOfWorld)
				}
			}
			check("work, 50 %", 1000, 3000, .5*4/.036)
			w.routes = []route{sleeps}
			check("sleep", 2000, 2000, 70)
			w.routes = mixed
			check("fast and slow sleep", 2000, 2000, 25)
		}
	}
}

// TestAutoOneCrowds: what is refused as its caller's own share is no reason to use more slots.
func TestAutoOneCrowds(t *testing.T) {
	t.Parallel()
	c := NewCore(Limits{Queue: 4}, func(*Ticket) {})
	c.Set(0, []Member{{Name: "0", Slots: slotsOfWorld, Auto: true}})
	for range 40 {
		_, err := c.Enter(0, Work{Caller: "many"})
		if err != nil && (fault.KindOf(err) != fault.Exhausted || c.pressure() == pressureFull) {
			t.Fatalf("%v; pressure %d", err, c.pressure())
		}
	}
	for _, caller := range []Caller{"a", "b", "c", "d"} { // the last finds a queue in which each has one place
		_, err := c.Enter(0, Work{Caller: caller})
		if full := c.pressure() == pressureFull; full != (err != nil) || full != (caller == "d") {
			t.Errorf("%s: %v; full: %t", caller, err, full)
		}
	}
}

// TestDemand: a pause does not count as what comes, not even as the first gap.
func TestDemand(t *testing.T) {
	t.Parallel()
	for _, before := range []int{1, 2, 20, 300} {
		var d demand
		now := time.Duration(0)
		come := func(n int) {
			for range n {
				now += 20 * time.Millisecond
				d.add(now)
			}
		}
		come(before)
		now += 10 * time.Hour
		come(256)
		if rate := d.rate(); rate < 45 || rate > 55 {
			t.Errorf("a pause after %d: %.1f a second; want 50", before, rate)
		}
	}
}

// TestAutoFollows: the mix changes, and after some time the slots used are those for it. What ends when is chance: 1 of 100 times or so that takes longer.
func TestAutoFollows(t *testing.T) {
	t.Parallel()
	const seeds, n, rate = 10, 2000, 45
	wrong := 0
	for seed := range uint64(seeds) {
		w := newWorld(2, slotsOfWorld, true, seed+1, computes)
		for i, c := range []struct {
			route route
			many  bool
		}{{computes, false}, {sleeps, true}, {computes, false}, {mixes, true}, {computes, false}} {
			w.routes = []route{c.route}
			w.seen = nil
			w.run(n, rate)
			levels := w.levelled(n, rate)
			if c.many != (levels[1] < .5) {
				wrong++
				t.Logf("seed %d, %d. %s: slots used %.2v", seed+1, i+1, c.route.name, levels)
			}
		}
	}
	if wrong > 2 {
		t.Errorf("%d of %d times others than those for the mix", wrong, 5*seeds)
	}
}
