package balance

import (
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// TestSubjects replays random steps on subjects. A subject has no more than its slots while there is work on others,
// and work waits beside a free slot only for that reason.
func TestSubjects(t *testing.T) {
	t.Parallel()
	subjects := []string{"", "mono", "small", "other"}
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(rapid.IntRange(1, 5).Draw(t, "slots"), rapid.IntRange(0, 8).Draw(t, "queue"), 0.5)
		each := rapid.IntRange(0, 5).Draw(t, "each")
		m.resize(m.slots(), m.limits.Queue, 0, each)
		had := map[string]int{}
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				c, on := rapid.SampledFrom(callers).Draw(t, "caller"), rapid.SampledFrom(subjects).Draw(t, "on")
				ok := m.enterOn(c, on)
				if !ok && len(m.queue.waiting) < m.limits.Queue {
					t.Fatalf("%q on %q was refused", c, on)
				}
			},
			"leave": func(t *rapid.T) {
				all := append([]*Ticket{}, m.holding...)
				for _, c := range callers {
					all = append(all, m.waiting[c]...)
				}
				if len(all) == 0 {
					t.Skip()
				}
				m.now += time.Duration(rapid.IntRange(0, 100_000).Draw(t, "ms")) * time.Millisecond
				m.leave(rapid.SampledFrom(all).Draw(t, "who"))
			},
			"narrow": func(t *rapid.T) {
				m.resize(rapid.IntRange(1, 5).Draw(t, "slots"), m.limits.Queue, 0, each)
				m.settle()
			},
			"": func(t *rapid.T) {
				m.check(t)
				m.checkSubjects(t, had)
			},
		})
	})
}

// checkSubjects compares with what each subject had a step before.
func (m *model) checkSubjects(t *rapid.T, had map[string]int) {
	has, waits := map[string]int{}, map[string]int{}
	for _, tk := range m.holding {
		has[tk.Subject]++
	}
	for _, all := range m.waiting {
		for _, tk := range all {
			waits[tk.Subject]++
		}
	}
	s := &m.queue.subjects
	each := m.slotsOfSubject(m.now)
	for name, n := range has {
		if name != "" && each > 0 && n > each && n > had[name] && s.isBounded(name, each, m.now) {
			t.Fatalf("%q has %d slots of %d", name, n, each)
		}
	}
	names := map[string]bool{}
	for name := range has {
		names[name] = true
	}
	for name, n := range waits {
		names[name] = names[name] || n > 0
	}
	for name := range names {
		if one := s.all[name]; name != "" && (has[name]+waits[name] > 0) != (one != nil) ||
			one != nil && *one != (subject{waiting: waits[name], holding: has[name]}) {
			t.Fatalf("%q is %+v; %d wait, %d hold slots", name, one, waits[name], has[name])
		}
	}
	if len(s.all) > len(names) {
		t.Fatalf("%d subjects, want %d", len(s.all), len(names))
	}
	clear(had)
	for name, n := range has {
		had[name] = n
	}
}

// TestOneSubjectLeavesASlot: alone it has all slots; while another is about, and for a minute after that, one is kept
// free.
func TestOneSubjectLeavesASlot(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	s := NewSlots(3, Limits{Queue: 10_000, Each: 2}, Clock{Now: func() time.Time { return now }})
	var held []func()
	take := func(on string) {
		release, _, err := s.AcquireOn(t.Context(), "", on)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, release)
	}
	for range 3 {
		take("mono")
	}
	if s.InUse() != 3 {
		t.Fatalf("alone it has %d", s.InUse())
	}
	held[0]()
	take("small") // at once
	held[3]()
	waiting := make(chan func())
	go func() {
		release, _, err := s.AcquireOn(t.Context(), "", "mono")
		if err != nil {
			t.Error(err)
			release = func() {}
		}
		waiting <- release
	}()
	for s.Queued() == 0 {
		time.Sleep(time.Millisecond)
	}
	if s.InUse() != 2 {
		t.Errorf("%d are in use while another is about", s.InUse())
	}
	take("small")
	held[4]()
	if s.Queued() != 1 {
		t.Error("who just came back found the slot taken")
	}
	now = now.Add(recently)
	held[1]() // gives the waiting one its slot; and then there is another free
	(<-waiting)()
	take("mono")
	take("mono")
	if s.InUse() != 3 {
		t.Errorf("alone again it has %d", s.InUse())
	}
	held[2]()
}

// TestManyWaitOnOneSubject checks that the search for work that fits stays short behind many pieces that do not.
func TestManyWaitOnOneSubject(t *testing.T) {
	t.Parallel()
	m := newModel(2, 20_000, 0.5)
	m.resize(2, 20_000, 0, 1)
	m.enterOn("", "other")
	m.leave(m.holding[0])
	for i := range 10_000 {
		if m.ticket(Caller(strconv.Itoa(i%10)), "mono") == nil {
			t.Fatal("refused")
		}
	}
	if m.inUse != 1 || len(m.queue.waiting) != 9_999 {
		t.Fatalf("%d in use, %d waiting", m.inUse, len(m.queue.waiting))
	}
	if tk := m.ticket("late", "other"); tk == nil || !isAnswered(tk) {
		t.Error("who came last could have a slot, and waits")
	}
	s := NewSlots(1, Limits{Each: 1}, Clock{})
	if _, _, err := s.AcquireOn(t.Context(), "", "a"); err != nil {
		t.Error(err)
	}
	if _, _, err := s.AcquireOn(t.Context(), "", "b"); !fault.Is(err, fault.Exhausted) {
		t.Error(err)
	}
}

// TestAloneWhenOneGivesUp: the end of a wait, too, shows that a subject has been alone for long enough.
func TestAloneWhenOneGivesUp(t *testing.T) {
	t.Parallel()
	m := newModel(3, 10, 0.5)
	m.resize(3, 10, 0, 1)
	m.Leave(m.now, m.ticket("", "other"), OK)
	m.ticket("", "mono")
	patient, other := m.ticket("", "mono"), m.ticket("", "mono")
	if m.inUse != 1 {
		t.Fatalf("%d in use while another is about", m.inUse)
	}
	m.now += recently
	m.Leave(m.now, other, OK)
	if m.inUse != 2 || patient.worker == nil {
		t.Errorf("%d in use when nobody else is", m.inUse)
	}
}
