package balance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// model is a Core with one worker, and a model of its state.
type model struct {
	*Core
	worker  *Worker
	now     time.Duration
	holding []*Ticket
	waiting map[Caller][]*Ticket // in the order of arrival
	gone    []*Ticket
}

func newModel(slots, most int, anonymous float64) *model {
	m := &model{waiting: map[Caller][]*Ticket{}}
	m.Core = NewCore(Limits{Queue: most, Anonymous: anonymous}, func(*Ticket) {})
	m.resize(slots, most, anonymous, 0)
	return m
}

func (m *model) resize(slots, most int, anonymous float64, each int) {
	m.Limit(m.now, Limits{Queue: most, Anonymous: anonymous, Each: each})
	m.worker = m.Set(m.now, []Member{{Slots: slots}})[0]
	m.settle()
}

func (m *model) slots() int { return m.worker.slots() }

func (m *model) enter(c Caller) bool { return m.enterOn(c, "") }

func (m *model) enterOn(c Caller, subject string) bool {
	tk := m.ticket(c, subject)
	if tk != nil {
		m.waiting[c] = append(m.waiting[c], tk)
	}
	m.settle()
	return tk != nil
}

// ticket enters work that the model does not know of; nil: it was refused.
func (m *model) ticket(c Caller, subject string) *Ticket {
	tk, err := m.Enter(m.now, Work{Caller: c, Subject: subject})
	if err != nil {
		return nil
	}
	return tk
}

func (m *model) leave(tk *Ticket) {
	m.Leave(m.now, tk, OK)
	m.holding = without(m.holding, tk)
	m.waiting[tk.Caller] = without(m.waiting[tk.Caller], tk)
	m.gone = append(without(m.gone, tk), tk)
	m.settle()
}

// settle sees what was answered.
func (m *model) settle() {
	for c, all := range m.waiting {
		for _, tk := range all {
			if isAnswered(tk) {
				m.waiting[c] = without(m.waiting[c], tk)
				if tk.err != nil {
					m.gone = append(m.gone, tk)
				} else {
					m.holding = append(m.holding, tk)
				}
			}
		}
	}
}

func (m *model) queued() int {
	n := 0
	for _, all := range m.waiting {
		n += len(all)
	}
	return n
}

var callers = []Caller{"", "ann", "bob", "192.0.2.0/24", "2001:db8::/64"}

// TestQueue replays random steps. The bounds hold, and no slot is free while work waits. The work of a caller is served
// in order, no work is lost, and a full queue refuses the caller with the most.
func TestQueue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(rapid.IntRange(1, 3).Draw(t, "slots"), rapid.IntRange(0, 5).Draw(t, "queue"),
			rapid.Float64Range(0, 1).Draw(t, "anonymous"))
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				c := rapid.SampledFrom(callers).Draw(t, "caller")
				before, mine := m.queued(), len(m.waiting[c])
				greedier := false
				for other, all := range m.waiting {
					greedier = greedier || other.Anonymous() == c.Anonymous() && len(all) > mine+1
				}
				room := m.inUse < m.slots() || before < m.limits.Queue
				ok := m.enter(c)
				if room && !ok || !room && greedier && !ok {
					t.Fatalf("%q was refused", c)
				}
				if !room && mine >= before && ok {
					t.Fatalf("%q has all of the queue and got more", c)
				}
			},
			"leave": func(t *rapid.T) {
				all := slices.Concat(m.holding, m.gone)
				for _, c := range callers {
					all = append(all, m.waiting[c]...)
				}
				if len(all) == 0 {
					t.Skip()
				}
				m.now += time.Duration(rapid.IntRange(0, 100_000).Draw(t, "ms")) * time.Millisecond
				m.leave(rapid.SampledFrom(all).Draw(t, "who"))
			},
			"resize": func(t *rapid.T) {
				m.resize(rapid.IntRange(1, 4).Draw(t, "slots"), rapid.IntRange(0, 5).Draw(t, "queue"), 0, 0)
				m.settle()
			},
			"": func(t *rapid.T) { m.check(t) },
		})
	})
}

func (m *model) check(t *rapid.T) {
	if m.inUse != len(m.holding) || len(m.queue.waiting) != m.queued() {
		t.Fatalf("%d in use, %d waiting; want %d, %d", m.inUse, len(m.queue.waiting), len(m.holding), m.queued())
	}
	for _, all := range m.waiting {
		for _, tk := range all {
			if m.inUse < m.slots() && !m.queue.subjects.isBounded(tk.Subject, m.slotsOfSubject(m.now), m.now) {
				t.Fatal("a slot is free while somebody waits")
			}
		}
	}
	for _, tk := range m.holding {
		for _, other := range m.waiting[tk.Caller] {
			if other.arrival < tk.arrival && other.Subject == tk.Subject {
				t.Fatal("a caller's work was done out of turn")
			}
		}
	}
	work := 0
	for i := range m.queue.pools {
		p := &m.queue.pools[i]
		for c, a := range p.accounts {
			if a.queued != len(m.waiting[c]) {
				t.Fatalf("%q has %d waiting, want %d", c, a.queued, len(m.waiting[c]))
			}
			work += a.queued + a.holding
		}
		if len(p.accounts) > keptIdle+len(callers) {
			t.Fatalf("%d accounts", len(p.accounts))
		}
	}
	if work != m.inUse+len(m.queue.waiting) {
		t.Fatal("work without an account")
	}
	if d := m.retryAfter(m.now); d < time.Second || d > time.Minute {
		t.Fatalf("retry after %v", d)
	}
}

// TestNoCallerStarves has greedy callers with endless work of any duration. Another caller gets a slot before any of
// them had more than its share of time, one piece of work, and its debt.
func TestNoCallerStarves(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(1, 3).Draw(t, "slots")
		m := newModel(slots, 100, 0.5)
		greedy := callers[1:rapid.IntRange(2, len(callers)).Draw(t, "greedy")]
		took := rapid.SliceOfN(rapid.IntRange(1, 2000), 30, 30).Draw(t, "ms")
		step := 0
		finish := func() { // the oldest ends, and its caller asks for more
			tk := m.holding[0]
			m.now += time.Duration(took[step%len(took)]) * time.Millisecond
			step++
			m.leave(tk)
			m.enter(tk.Caller)
		}
		for _, c := range greedy {
			for range slots + 2 {
				m.enter(c)
			}
		}
		for range rapid.IntRange(0, 40).Draw(t, "before") {
			finish()
		}
		quiet := rapid.SampledFrom([]Caller{"quiet", "198.51.100.0/24"}).Draw(t, "quiet")
		m.enter(quiet)
		for turns := 0; len(m.waiting[quiet]) > 0; turns++ {
			// Each of the others may be served until it has had as much as the quiet one is charged: one mean, of at
			// least a millisecond.
			if turns > 50*len(greedy)*slots {
				t.Fatalf("%q still waits after %d others", quiet, turns)
			}
			finish()
		}
	})
}

// TestDebtsArePaidByWaiting has new callers without usage while a caller with much usage waits. Callers that come after
// the time for the largest debt are served later.
func TestDebtsArePaidByWaiting(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(1, 3).Draw(t, "slots")
		m := newModel(slots, 1000, 0.5)
		took := rapid.SliceOfN(rapid.IntRange(1, 5000), 20, 20).Draw(t, "ms")
		name := rapid.SampledFrom([]string{"caller-%d", "network/%d"}).Draw(t, "callers")
		debtor := Caller(fmt.Sprintf(name, 0))
		for range slots {
			m.enter(debtor)
		}
		came, step := map[*Ticket]time.Duration{}, 0
		newcomer := func() {
			step++
			c := Caller(fmt.Sprintf(name, step))
			m.enter(c)
			for _, tk := range slices.Concat(m.waiting[c], m.holding) {
				if tk.Caller == c {
					came[tk] = m.now
				}
			}
		}
		for range rapid.IntRange(1, 50).Draw(t, "crowd") {
			newcomer()
		}
		m.now += time.Duration(rapid.IntRange(1, 1000).Draw(t, "held")) * time.Second
		for len(m.holding) > 0 && m.holding[0].Caller == debtor { // which makes the debt
			m.leave(m.holding[0])
		}
		began := m.now
		m.enter(debtor)
		for turns := 0; len(m.waiting[debtor]) > 0; turns++ {
			m.now += time.Duration(took[turns%len(took)]) * time.Millisecond
			m.leave(m.holding[0])
			for _, tk := range m.holding {
				if at := came[tk]; tk.Caller != debtor && at-began > mostDebt {
					t.Fatalf("one who came %v later was served first", at-began)
				}
			}
			newcomer()
			if turns > 100_000 {
				t.Fatal("it never is the debtor's turn")
			}
		}
	})
}

// share runs two callers that always have work, and returns the part of the slot time that the first one got.
func share(a, b Caller, tookA, tookB time.Duration, anonymous float64) float64 {
	m := newModel(1, 100, anonymous)
	for range 3 {
		m.enter(a)
		m.enter(b)
	}
	got := map[Caller]time.Duration{}
	for range 2000 {
		tk := m.holding[0]
		d := tookA
		if tk.Caller == b {
			d = tookB
		}
		m.now += d
		got[tk.Caller] += d
		m.leave(tk)
		m.enter(tk.Caller)
	}
	return float64(got[a]) / float64(got[a]+got[b])
}

func TestCallersShareTime(t *testing.T) {
	t.Parallel()
	const network Caller = "192.0.2.0/24"
	for _, c := range []struct {
		a, b         Caller
		tookA, tookB time.Duration
		anonymous    float64
		want         float64
	}{
		{"ann", "bob", time.Second, time.Second, 0.5, 0.5},
		{"ann", "bob", 10 * time.Second, time.Second, 0.5, 0.5}, // of time, not of turns
		{"", "bob", time.Second, 3 * time.Second, 0.5, 0.5},
		{"ann", network, time.Second, time.Second, 0.25, 0.75},
		{"ann", network, time.Second, 4 * time.Second, 0.2, 0.8},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			if got := share(c.a, c.b, c.tookA, c.tookB, c.anonymous); got < c.want-0.05 || got > c.want+0.05 {
				t.Errorf("%.3f of the time, want %.3f", got, c.want)
			}
		})
	}
}

// TestAccountsAreBounded lets ever new callers come, all with debts.
func TestAccountsAreBounded(t *testing.T) {
	t.Parallel()
	m := newModel(2, 10, 0.5)
	for i := range 5 * keptIdle {
		m.enter(Caller(fmt.Sprintf("caller-%d", i)))
		m.now += time.Duration(i) * time.Second
		if len(m.holding) == 2 {
			m.leave(m.holding[0])
		}
		if n := len(m.queue.pools[known].accounts); n > keptIdle+3 {
			t.Fatalf("%d accounts after %d callers", n, i+1)
		}
	}
}

// TestFullQueue checks that the work of a greedy caller makes room for a caller with less work in the queue.
func TestFullQueue(t *testing.T) {
	t.Parallel()
	m := newModel(1, 4, 0.5)
	for range 5 {
		m.enter("greedy")
	}
	if m.enter("greedy") {
		t.Fatal("more than the queue's length waits")
	}
	for i, c := range []Caller{"quiet", "quiet"} {
		if !m.enter(c) {
			t.Fatalf("the %d. of a quiet caller was refused", i+1)
		}
	}
	if m.enter("quiet") {
		t.Error("a caller with a half of the queue displaced another")
	}
	if !m.enter("192.0.2.0/24") {
		t.Error("the anonymous pool has none of the queue")
	}
	if got := len(m.waiting["greedy"]) + len(m.waiting["quiet"]); got != 3 {
		t.Errorf("%d of the known wait, want 3", got)
	}
}

func without(ts []*Ticket, t *Ticket) []*Ticket {
	return slices.DeleteFunc(slices.Clone(ts), func(x *Ticket) bool { return x == t })
}

func isAnswered(t *Ticket) bool { return t.worker != nil || t.err != nil }
