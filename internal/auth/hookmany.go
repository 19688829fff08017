package auth

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/packhorse-git/packhorse/internal/git"
)

const (
	// readableTime is how long a caller waits until it is known which repositories they may read; then it is not of some. What is on its way then
	// goes on, for HookOptions.Timeout for a turn and for an answer, and is remembered.
	readableTime = 5 * time.Second
	// togetherAsked is about how many repositories one question is, of a hook that understands it; togetherName how many bytes of an answer a name may take.
	togetherAsked = 500
	togetherName  = 8 << 10
	// maxManyAsking is how many questions are on their way for one such caller, and maxAllAsking for all of them: they take turns with all others.
	maxManyAsking = 8
	maxAllAsking  = 16
	// manyTimes as many answers are remembered of what is asked for many repositories as of other questions.
	manyTimes = 20
)

// view is which repositories a caller may read, as far as the hook has said.
type view struct {
	turn chan struct{} // one asks at a time: who comes next finds what it was told
	key  string
	held int // answers; guarded by Hook.mu

	mu   sync.Mutex // a caller asks for all repositories: nobody else is to wait for that
	said map[git.RepoPath]said
}

// said is an answer about one repository.
type said struct {
	until int64 // ns since 1970
	allow bool
}

// readable tells which of many repositories an identity may read. whole: false: of some that could not be found out, within readableTime; what was is
// remembered, for TTL. They are asked about in one question where the hook understands that, else several at a time.
func (h *Hook) readable(ctx context.Context, id Identity, repos []git.RepoPath) (may []bool, whole bool) {
	ctx, cancel := context.WithTimeout(ctx, h.patience)
	defer cancel()
	v := h.view(id)
	m := &many{h: h, id: id, view: v, repos: repos, may: make([]bool, len(repos))}
	left := m.remembered(0)
	if len(left) == 0 {
		h.o.Metrics.question("remembered")
		return m.may, true
	}
	select {
	case v.turn <- struct{}{}:
		defer func() { <-v.turn }()
	case <-ctx.Done():
		return m.may, false
	}
	if left = m.remembered(0); m.ask(ctx, left) {
		return m.result(), true
	}
	if h.o.Stale {
		left = m.remembered(maxStale)
		h.o.Metrics.question("stale")
		return m.result(), len(left) == 0
	}
	return m.result(), false
}

// result is what is known now; what comes later is no part of it.
func (m *many) result() []bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.may)
}

// view gives a caller's view; a new one, if there is none.
func (h *Hook) view(id Identity) *view {
	q := question{Question: readable, Client: id.Address}
	if !id.Anonymous() {
		q.Identity = &known{id.Name, id.By}
	}
	key := h.hash(q)
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.views[key]; e != nil {
		h.viewed.MoveToFront(e)
		return e.Value.(*view)
	}
	v := &view{turn: make(chan struct{}, 1), key: key, said: map[git.RepoPath]said{}}
	if h.o.Size > 0 {
		h.views[key] = h.viewed.PushFront(v)
		h.forgetViews() // there are many of nothing while the hook does not answer
	}
	return v
}

// many is one caller's question about many repositories.
type many struct {
	h     *Hook
	id    Identity
	view  *view
	repos []git.RepoPath

	mu     sync.Mutex
	may    []bool // of each
	failed bool   // the hook, or the time is over
}

// remembered fills in what was said before, if it holds or ran out no longer than stale ago, and lists the rest.
func (m *many) remembered(stale time.Duration) (left []int) {
	now := m.h.o.Now().Add(-stale).UnixNano()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.view.mu.Lock()
	defer m.view.mu.Unlock()
	for i, repo := range m.repos {
		if s, ok := m.view.said[repo]; ok && now < s.until {
			m.may[i] = s.allow
		} else if utf8.ValidString(repo.String()) { // in JSON several others would be one
			left = append(left, i)
		}
	}
	return left
}

// ask asks about what is left, and tells whether all of it was answered.
func (m *many) ask(ctx context.Context, left []int) bool {
	size := 1
	if m.h.o.Many {
		size = togetherAsked
	}
	parts := make(chan []int)
	var asking sync.WaitGroup
	for range min(maxManyAsking, (len(left)+size-1)/size) {
		asking.Go(func() {
			for part := range parts {
				m.part(ctx, part)
			}
		})
	}
	for len(left) > 0 && !m.over(ctx) {
		n := min(size, len(left))
		parts <- left[:n]
		left = left[n:]
	}
	close(parts)
	asking.Wait()
	m.mu.Lock() // who waits no longer for an answer leaves it to come
	defer m.mu.Unlock()
	return !m.failed && len(left) == 0
}

func (m *many) over(ctx context.Context) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failed = m.failed || ctx.Err() != nil
	return m.failed
}

// part asks one question, and waits for the answer until ctx ends.
func (m *many) part(ctx context.Context, part []int) {
	select {
	case m.h.crowd <- struct{}{}:
	case <-ctx.Done():
		m.over(ctx)
		return
	}
	if m.over(ctx) {
		<-m.h.crowd
		return
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		defer func() { <-m.h.crowd }()
		m.take(part)
	}()
	select {
	case <-told:
	case <-ctx.Done():
		m.over(ctx)
	}
}

// take asks, and fills in what is said.
func (m *many) take(part []int) {
	allowed, err := m.question(part)
	if err == nil {
		m.h.keep(m.view, m.repos, part, allowed)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.failed = true
		return
	}
	for n, i := range part {
		m.may[i] = allowed[n]
	}
}

// question asks the hook about one repository, or about several.
func (m *many) question(part []int) ([]bool, error) {
	q := question{Question: authorize, Operation: Read.String(), Client: m.id.Address}
	if !m.id.Anonymous() {
		q.Identity = &known{m.id.Name, m.id.By}
	}
	names := make([]string, len(part))
	for n, i := range part {
		names[n] = strings.Join(pathOf(m.repos[i]), "/")
	}
	if !m.h.o.Many {
		q.Repository = names[0]
		a, err := m.h.once(q, nil)
		if err != nil {
			return nil, err
		}
		return []bool{a.Allow}, nil
	}
	q.Question, q.Repositories = readable, names
	a, err := m.h.once(q, nil)
	if err != nil {
		return nil, err
	}
	given := make(map[string]bool, len(a.Repositories))
	for _, name := range a.Repositories {
		given[name] = a.Allow
	}
	allowed := make([]bool, len(part))
	for n, name := range names {
		allowed[n] = given[name]
	}
	return allowed, nil
}

// keep remembers answers.
func (h *Hook) keep(v *view, repos []git.RepoPath, part []int, allowed []bool) {
	until := h.o.Now().Add(h.o.TTL).UnixNano()
	v.mu.Lock()
	for n, i := range part {
		v.said[repos[i]] = said{until, allowed[n]}
	}
	held := len(v.said)
	v.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.views[v.key] == nil || h.views[v.key].Value.(*view) != v {
		return // forgotten meanwhile
	}
	if held > v.held { // else another answer has come, and counted, in between
		h.saying += held - v.held
		v.held = held
	}
	h.forgetViews()
}

// forgetViews forgets the views that were used least recently, until there are few enough, with few enough answers. The caller holds mu.
func (h *Hook) forgetViews() {
	for h.viewed.Len() > 0 && (h.saying > manyTimes*h.o.Size || h.viewed.Len() > h.o.Size) {
		old := h.viewed.Remove(h.viewed.Back()).(*view)
		delete(h.views, old.key)
		h.saying -= old.held
	}
}
