package balance

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// crowd is a Core with workers of all kinds, and a model of its state.
type crowd struct {
	*Core
	now      time.Duration
	workers  []*Worker
	gone     []*Worker
	down     map[string]bool
	usable   map[string]bool
	running  []*Ticket
	waiting  []*Ticket
	answered []*Ticket // by the step that goes on
	err      string
}

func newCrowd(l Limits) *crowd {
	m := &crowd{down: map[string]bool{}, usable: map[string]bool{}}
	m.Core = NewCore(l, func(t *Ticket) {
		m.answered = append(m.answered, t)
		m.assigned(t)
	})
	return m
}

func (m *crowd) set(members ...Member) {
	for i, w := range members {
		members[i].Ready = func() error {
			if m.down[w.Name] {
				return errors.New("down")
			}
			return nil
		}
		members[i].Usable = func() bool { return m.usable[w.Name] }
	}
	before := m.workers
	m.workers = m.Set(m.now, members)
	for _, w := range before {
		if !slices.Contains(m.workers, w) {
			m.gone = append(m.gone, w)
		}
	}
}

// candidates are those that could have the work, and can be given it.
func (m *crowd) candidates(t *Ticket) (all, open []*Worker) {
	among := m.list
	if t.Among != nil {
		among = t.Among
	}
	ready := false
	for _, w := range among {
		if w.isRemoved || w.isDraining || slices.Contains(t.Tried, w.Name()) || m.down[w.Name()] && !m.usable[w.Name()] {
			continue
		}
		all = append(all, w)
		ready = ready || !m.down[w.Name()]
	}
	for _, w := range all {
		if (!m.down[w.Name()] || !ready) && (w.slots() == 0 || w.inFlight < w.slots()) {
			open = append(open, w)
		}
	}
	return all, open
}

// isHeld reports whether work waits for a slot of its subject.
func (m *crowd) isHeld(t *Ticket) bool {
	return m.queue.subjects.isBounded(t.Subject, m.slotsOfSubject(m.now), m.now)
}

// assigned holds an assignment, just made, to the rules.
func (m *crowd) assigned(t *Ticket) {
	w := t.worker
	if w == nil {
		return
	}
	switch {
	case w.isRemoved || w.isDraining || w.slots() > 0 && w.inFlight > w.slots() || w.inFlight > w.member.Slots &&
		w.member.Slots > 0:
		m.err = fmt.Sprintf("%s has %d of %d slots; draining %t, removed %t", w.Name(), w.inFlight, w.slots(), w.isDraining,
			w.isRemoved)
	case slices.Contains(t.Tried, w.Name()) || t.Among != nil && !slices.Contains(t.Among, w):
		m.err = w.Name() + " was not to have it"
	case m.down[w.Name()] && !m.usable[w.Name()]:
		m.err = w.Name() + " is down"
	}
	if m.down[w.Name()] || m.now < w.restsUntil || t.Ordered {
		return
	}
	all, _ := m.candidates(t)
	had := m.load(w, w.inFlight-1)
	for _, other := range all {
		if other == w || m.down[other.Name()] || m.now < other.restsUntil || other.slots() > 0 &&
			other.inFlight >= other.slots() {
			continue
		}
		if w.inFlight > 1 && other.inFlight == 0 {
			m.err = fmt.Sprintf("%s has %d in flight, and %s is idle", w.Name(), w.inFlight, other.Name())
		}
		if had > m.load(other, other.inFlight)*1.000001 {
			m.err = fmt.Sprintf("%s is busier than %s", w.Name(), other.Name())
		}
	}
}

// load is how busy a worker is that has so many in flight: for its slots and its weight.
func (m *crowd) load(w *Worker, inFlight int) float64 {
	return float64(inFlight) / float64(max(w.member.Slots, 1)) / float64(w.member.Weight)
}

func (m *crowd) enter(w Work) *Ticket {
	t, err := m.Enter(m.now, w)
	if err != nil {
		return nil
	}
	if t.worker != nil {
		m.running = append(m.running, t)
		m.assigned(t)
	} else {
		m.waiting = append(m.waiting, t)
	}
	return t
}

func (m *crowd) leave(t *Ticket, how Outcome) {
	m.Leave(m.now, t, how)
	m.running, m.waiting = without(m.running, t), without(m.waiting, t)
}

// settle sees what was answered.
func (m *crowd) settle() {
	for _, t := range m.answered {
		m.waiting = without(m.waiting, t)
		if t.worker != nil && !t.gone {
			m.running = append(m.running, t)
		}
	}
	m.answered = nil
}

// pass advances the time, as a Scheduler does, and wakes the Core when it is due.
func (m *crowd) pass(d time.Duration) {
	end := m.now + d
	for {
		at, ok := m.Next(m.now)
		if !ok || at > end {
			break
		}
		m.now = max(at, m.now)
		m.Wake(m.now)
	}
	m.now = end
}

func (m *crowd) check(t *rapid.T) {
	m.settle()
	if m.err != "" {
		t.Fatal(m.err)
	}
	flight := map[*Worker]int{}
	for _, tk := range m.running {
		flight[tk.worker]++
	}
	for _, w := range slices.Concat(m.workers, m.gone) {
		if w.inFlight != flight[w] {
			t.Fatalf("%s has %d in flight; want %d", w.Name(), w.inFlight, flight[w])
		}
	}
	if waiting := len(m.queue.waiting) + len(m.queue.checks); m.inUse != len(m.running) || waiting != len(m.waiting) {
		t.Fatalf("%d run, %d wait; want %d, %d", m.inUse, waiting, len(m.running), len(m.waiting))
	}
	m.Wake(m.now) // readiness may have changed unseen
	m.settle()
	for _, tk := range m.waiting {
		_, open := m.candidates(tk)
		if len(open) > 0 && !m.isHeld(tk) {
			t.Fatalf("%s is free while something waits", open[0].Name())
		}
	}
	if m.err != "" {
		t.Fatal(m.err)
	}
}

// TestInvariants lets random things happen to a Core, and holds each assignment, and all that it keeps, to the rules.
func TestInvariants(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "c", "d", "e"}
	rapid.Check(t, func(t *rapid.T) {
		limits := func() Limits {
			return Limits{Queue: rapid.IntRange(0, 12).Draw(t, "queue"),
				Each: rapid.IntRange(0, 3).Draw(t, "each"),
				Wait: rapid.SampledFrom([]time.Duration{0, time.Second}).Draw(t, "wait")}
		}
		members := func() (all []Member) {
			for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID).Draw(t, "names") {
				all = append(all, Member{Name: name, Weight: rapid.IntRange(-1, 4).Draw(t, "weight"),
					Slots: rapid.SampledFrom([]int{0, 1, 1, 2, 2, 3, 8}).Draw(t, "slots")})
			}
			return all
		}
		m := newCrowd(limits())
		m.set(members()...)
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				w := Work{Caller: rapid.SampledFrom(callers).Draw(t, "caller"),
					Subject: rapid.SampledFrom([]string{"", "", "x", "y"}).Draw(t, "subject"),
					Check:   rapid.IntRange(0, 9).Draw(t, "check") == 0, NoWait: rapid.IntRange(0, 9).Draw(t, "no wait") == 0}
				if rapid.IntRange(0, 3).Draw(t, "some") == 0 {
					w.Tried = rapid.SliceOfN(rapid.SampledFrom(names), 0, 2).Draw(t, "tried")
				}
				if rapid.IntRange(0, 3).Draw(t, "among") == 0 {
					w.Among = []*Worker{}
					for _, worker := range slices.Concat(m.workers, m.gone) {
						if rapid.Bool().Draw(t, "one") {
							w.Among = append(w.Among, worker)
						}
					}
				}
				tk := m.enter(w)
				if all, open := m.candidates(&Ticket{Work: w}); tk == nil && len(open) > 0 && !m.isHeld(&Ticket{Work: w}) {
					t.Fatalf("refused, though %s is free; %d could", open[0].Name(), len(all))
				}
			},
			"leave": func(t *rapid.T) {
				all := slices.Concat(m.running, m.waiting)
				if len(all) == 0 {
					t.Skip()
				}
				m.pass(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
				m.settle()
				m.leave(rapid.SampledFrom(all).Draw(t, "who"), rapid.SampledFrom([]Outcome{OK, OK, OK, Failed, Cut}).Draw(t, "how"))
			},
			"members": func(t *rapid.T) { m.set(members()...) },
			"limits":  func(t *rapid.T) { m.Limit(m.now, limits()) },
			"drain": func(t *rapid.T) {
				_ = m.Drain(m.now, rapid.SampledFrom(names).Draw(t, "name"), rapid.Bool().Draw(t, "draining"))
			},
			"narrow": func(t *rapid.T) {
				if len(m.workers) > 0 {
					m.Narrow(m.now, rapid.SampledFrom(m.workers).Draw(t, "worker"), rapid.IntRange(0, 4).Draw(t, "to"))
				}
			},
			"down": func(t *rapid.T) {
				name := rapid.SampledFrom(names).Draw(t, "name")
				m.down[name], m.usable[name] = rapid.Bool().Draw(t, "down"), rapid.Bool().Draw(t, "usable")
				if rapid.Bool().Draw(t, "tell") {
					m.Wake(m.now)
				}
			},
			"pass": func(t *rapid.T) { m.pass(time.Duration(rapid.IntRange(0, 90_000).Draw(t, "ms")) * time.Millisecond) },
			"":     m.check,
		})
		m.comesToAnEnd(t)
	})
}

// comesToAnEnd ends the running work, one piece at a time. All waiting work that a worker can do gets its turn, and no
// state remains.
func (m *crowd) comesToAnEnd(t *rapid.T) {
	clear(m.down)
	for _, w := range m.workers {
		if err := m.Drain(m.now, w.Name(), false); err != nil {
			t.Fatal(err)
		}
	}
	m.Wake(m.now)
	m.settle()
	for turn := 0; len(m.running) > 0; turn++ {
		m.pass(10 * time.Millisecond)
		m.settle()
		m.leave(m.running[0], OK)
		m.settle()
	}
	for _, tk := range m.waiting {
		if all, _ := m.candidates(tk); len(all) > 0 {
			m.pass(recently)
			m.settle()
			if slices.Contains(m.waiting, tk) && len(m.running) == 0 {
				t.Fatalf("one still waits, though %s is there", all[0].Name())
			}
		}
	}
	for _, tk := range slices.Concat(m.waiting, m.running) {
		m.leave(tk, Cut)
		m.settle()
	}
	for _, tk := range m.running { // granted by the last of them
		m.leave(tk, OK)
	}
	if m.inUse+len(m.queue.checks)+len(m.queue.waiting)+len(m.queue.subjects.all) > 0 {
		t.Fatalf("left are %d that run, %d that wait, %d subjects", m.inUse, len(m.queue.waiting), len(m.queue.subjects.all))
	}
}

// TestEverybodyHasATurn checks that no work waits for long behind later work on the same subject.
func TestEverybodyHasATurn(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := newCrowd(Limits{Queue: 1000, Each: rapid.IntRange(0, 2).Draw(t, "each")})
		var members []Member
		for i := range rapid.IntRange(1, 4).Draw(t, "workers") {
			members = append(members, Member{Name: strconv.Itoa(i), Weight: rapid.IntRange(1, 4).Draw(t, "weight"),
				Slots: rapid.IntRange(1, 3).Draw(t, "slots")})
		}
		m.set(members...)
		passed := map[*Ticket]int{}
		enter := func() {
			w := Work{Caller: rapid.SampledFrom(callers).Draw(t, "caller"),
				Subject: rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "subject")}
			m.enter(w)
		}
		for range rapid.IntRange(1, 20).Draw(t, "crowd") {
			enter()
		}
		for turn := 0; turn < 300 && len(m.running) > 0; turn++ {
			m.pass(time.Duration(rapid.IntRange(1, 100).Draw(t, "ms")) * time.Millisecond)
			m.settle()
			m.leave(m.running[0], OK)
			for _, given := range m.answered {
				for _, tk := range m.waiting {
					if tk.arrival < given.arrival && tk.Subject == given.Subject {
						passed[tk]++
					}
					if passed[tk] > 100 && tk.worker == nil {
						t.Fatalf("%d that came later went first", passed[tk])
					}
				}
			}
			m.settle()
			enter()
		}
		if m.err != "" {
			t.Fatal(m.err)
		}
	})
}

// TestTenThousandLeave checks that callers that give up cost little and leave no state.
func TestTenThousandLeave(t *testing.T) {
	t.Parallel()
	m := newCrowd(Limits{Queue: 10_000})
	m.set(Member{Name: "a", Slots: 1}, Member{Name: "b", Slots: 1})
	for i := range 10_002 {
		if m.enter(Work{Caller: Caller(strconv.Itoa(i % 5000))}) == nil {
			t.Fatal("refused")
		}
	}
	for i, tk := range m.waiting {
		m.Leave(time.Duration(i), tk, Cut)
	}
	for _, p := range m.queue.pools {
		if n := len(p.accounts); n > 2 {
			t.Errorf("%d accounts are left", n)
		}
	}
	if len(m.queue.waiting) != 0 || m.inUse != 2 {
		t.Errorf("%d wait, %d run", len(m.queue.waiting), m.inUse)
	}
}
