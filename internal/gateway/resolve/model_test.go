package resolve

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// step is one thing that happens in the model.
type step struct {
	what string
	repo git.RepoPath
	n    int
}

var steps = []string{
	"ask", "ask", "ask", "slow", "slow", "answer", "answer", "move", "move", "deliver", "deliver", "deliver", "all",
	"break", "restart", "remove", "create",
	"changed", "sleep", "forget",
}

// model is a node whose answers and events are let go one by one, the tiers over it, and what was true when.
type model struct {
	node  *fakeNode
	tiers *Tiers
	mute  bool // no events at all

	mu     sync.Mutex
	holds  []chan bool // answers that were made and not given
	hold   atomic.Bool // the next answer
	spans  map[git.RepoPath][]span
	floors map[git.RepoPath]uint64 // serials of the latest events that the tiers took in
	wrong  []string
}

// span is a time in which a repository was in one state; serial 0: it was not there.
type span struct {
	serial   uint64
	from, to time.Time // zero: until now
}

// TestModel changes refs, removes and creates repositories, restarts nodes, delays events and answers in any order, and
// breaks watches. No look-up may return a state that is older than the latest event before its start. Without events,
// each returned state was current within the TTL.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		mute := rapid.Bool().Draw(rt, "mute")
		var todo []step
		for _, what := range rapid.SliceOfN(rapid.SampledFrom(steps), 1, 60).Draw(rt, "steps") {
			todo = append(todo, step{what, path([]string{"a", "b"}[rapid.IntRange(0, 1).Draw(rt, "repo")]),
				rapid.IntRange(0, 3).Draw(rt, "n")})
		}
		var wrong []string
		synctest.Test(t, func(t *testing.T) { wrong = play(t, mute, todo) })
		if len(wrong) > 0 {
			rt.Fatalf("%s", strings.Join(wrong, "\n"))
		}
	})
}

func play(t *testing.T, mute bool, todo []step) []string {
	m := &model{node: newFakeNode(), mute: mute, spans: map[git.RepoPath][]span{}, floors: map[git.RepoPath]uint64{}}
	m.node.queued = true
	if mute {
		m.node.mute = fmt.Errorf("no events")
	}
	m.node.hold(func([]node.Question) {
		if m.hold.CompareAndSwap(true, false) {
			c := make(chan bool)
			m.mu.Lock()
			m.holds = append(m.holds, c)
			m.mu.Unlock()
			<-c
		}
	})
	m.node.told = m.processed
	m.tiers = newTiers(t, m.node)
	for _, p := range []string{"a", "b"} {
		m.node.create(path(p))
		m.now(path(p))
	}
	var asks sync.WaitGroup
	for _, s := range todo {
		m.step(t, &asks, s)
		synctest.Wait()
	}
	m.hold.Store(false)
	for len(m.holds) > 0 {
		m.answer(0)
		synctest.Wait()
	}
	asks.Wait()
	return m.wrong
}

func (m *model) step(t *testing.T, asks *sync.WaitGroup, s step) {
	switch s.what {
	case "slow":
		m.hold.Store(true)
		fallthrough
	case "ask":
		asks.Go(func() { m.ask(t, s.repo, []string{"main", "HEAD"}[s.n%2]) })
	case "answer":
		m.answer(s.n)
	case "deliver":
		m.node.letGo()
	case "all":
		for range 100 {
			m.node.letGo()
		}
	case "break":
		m.node.breakWatches()
	case "restart":
		m.node.restart()
	case "move":
		m.node.move(s.repo)
		m.now(s.repo)
	case "remove":
		m.node.remove(s.repo)
		m.now(s.repo)
	case "create":
		m.node.remove(s.repo)
		m.node.create(s.repo)
		m.now(s.repo)
	case "changed":
		m.tiers.Changed(s.repo)
	case "forget":
		m.tiers.Forget()
	case "sleep":
		time.Sleep([]time.Duration{30 * time.Millisecond, time.Second, 20 * time.Second, 90 * time.Second}[s.n])
	}
}

// now notes the state that a repository is in from now on.
func (m *model) now(p git.RepoPath) {
	m.node.mu.Lock()
	defer m.node.mu.Unlock()
	serial := uint64(0)
	if r := m.node.repos[p]; r != nil {
		serial = r.serial
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	list := m.spans[p]
	if len(list) > 0 {
		list[len(list)-1].to = time.Now()
	}
	m.spans[p] = append(list, span{serial: serial, from: time.Now()})
}

// processed records an event that the tiers have processed.
func (m *model) processed(e node.Event, serial uint64) {
	m.tiers.mu.Lock()
	r := m.tiers.repos[e.Repository]
	taken := r != nil && r.stream != nil && r.heard == e.Version
	m.tiers.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if taken {
		m.floors[e.Repository] = max(m.floors[e.Repository], serial)
	}
}

// answer gives one of the answers that are held.
func (m *model) answer(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.holds) > 0 {
		n %= len(m.holds)
		close(m.holds[n])
		m.holds = append(m.holds[:n], m.holds[n+1:]...)
	}
}

func (m *model) ask(t *testing.T, p git.RepoPath, revision string) {
	began := time.Now()
	m.mu.Lock()
	floor := m.floors[p]
	spans := len(m.spans[p])
	m.mu.Unlock()
	results, err := m.tiers.Resolve(t.Context(), []node.Question{{Repository: p, Revision: revision}})
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		if time.Since(began) < fillLimit { // a look-up that was held for longer fails
			m.wrong = append(m.wrong, err.Error())
		}
		return
	}
	serial := uint64(0)
	if results[0].Err == nil {
		serial = serialOf(results[0].ID)
	}
	for i, s := range m.spans[p] {
		switch {
		case s.serial != serial:
			continue
		case serial == 0 && i < spans-1 && s.to.Before(began):
			continue // it may exist by now
		case serial != 0 && serial < floor:
			m.wrong = append(m.wrong, fmt.Sprintf("%s %s: got state %d, want %d or later, after its event", p, revision, serial,
				floor))
			return
		case m.mute && !s.to.IsZero() && s.to.Before(began.Add(-time.Minute)):
			m.wrong = append(m.wrong, fmt.Sprintf("%s %s: state %d, which ended %v before", p, revision, serial,
				began.Sub(s.to)))
			return
		}
		return
	}
	m.wrong = append(m.wrong, fmt.Sprintf("%s %s: state %d, which it was not in", p, revision, serial))
}
