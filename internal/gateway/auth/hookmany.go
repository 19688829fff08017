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
	// readableTime is the maximum time that a caller waits for decisions about many repositories. Running requests
	// continue after that, and their answers are cached.
	readableTime = 5 * time.Second
	// maxTogether is the maximum number of repositories in one request. maxNameBytes is the maximum length of a name in
	// the answer.
	maxTogether  = 500
	maxNameBytes = 8 << 10
	// maxCallerRequests limits the concurrent requests for one caller, and maxManyRequests those for all callers.
	maxCallerRequests = 8
	maxManyRequests   = 16
	// viewFactor is the maximum number of these cached answers for each entry that HookOptions.Size allows.
	viewFactor = 20
)

// view caches the answers about the repositories that one caller may read.
type view struct {
	key     string
	counted int           // number of answers that Hook.viewAnswers includes; guarded by Hook.mu
	turn    chan struct{} // held by one call while it asks, so that the next call finds its answers

	mu      sync.Mutex
	answers map[git.RepoPath]viewAnswer
}

type viewAnswer struct {
	until int64 // Unix nanoseconds
	allow bool
}

// readable reports which of many repositories an identity may read. complete is false if some could not be determined
// within readableTime. If the hook supports it, one request covers many repositories.
func (h *Hook) readable(ctx context.Context, id Identity, repos []git.RepoPath) (allowed []bool, complete bool) {
	ctx, cancel := context.WithTimeout(ctx, h.readableTime)
	defer cancel()
	v := h.view(id)
	q := &manyQuestion{h: h, id: id, view: v, repos: repos, allowed: make([]bool, len(repos))}
	missing := q.fromCache(0)
	if len(missing) == 0 {
		h.o.Metrics.question("hook", "cached")
		return q.allowed, true
	}
	select {
	case v.turn <- struct{}{}:
		defer func() { <-v.turn }()
	case <-ctx.Done():
		return q.allowed, false
	}
	if missing = q.fromCache(0); q.ask(ctx, missing) {
		return q.result(), true
	}
	if h.o.Stale {
		missing = q.fromCache(maxStale)
		h.o.Metrics.question("hook", "stale")
		return q.result(), len(missing) == 0
	}
	return q.result(), false
}

// view returns the cached answers for a caller, or a new view.
func (h *Hook) view(id Identity) *view {
	key := h.hash(question{Question: readable, Client: id.Address, Identity: hookIdentityOf(id)})
	h.mu.Lock()
	defer h.mu.Unlock()
	if v, ok := h.views.Get(key); ok {
		return v
	}
	v := &view{turn: make(chan struct{}, 1), key: key, answers: map[git.RepoPath]viewAnswer{}}
	h.views.Add(key, v)
	return v
}

// manyQuestion is a question of one caller about many repositories.
type manyQuestion struct {
	h     *Hook
	id    Identity
	view  *view
	repos []git.RepoPath

	mu      sync.Mutex
	allowed []bool // for each repository
	failed  bool   // the hook failed, or ctx has ended
}

// result returns the current result. Later answers do not change it.
func (q *manyQuestion) result() []bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.allowed)
}

// fromCache fills in answers that expired at most stale ago, and returns the indexes of the other repositories.
func (q *manyQuestion) fromCache(stale time.Duration) (missing []int) {
	now := q.h.o.Now().Add(-stale).UnixNano()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.view.mu.Lock()
	defer q.view.mu.Unlock()
	for i, repo := range q.repos {
		if a, ok := q.view.answers[repo]; ok && now < a.until {
			q.allowed[i] = a.allow
		} else if utf8.ValidString(repo.String()) { // different invalid names would be equal in JSON
			missing = append(missing, i)
		}
	}
	return missing
}

// ask asks about the repositories with the given indexes, and reports whether all answers arrived.
func (q *manyQuestion) ask(ctx context.Context, missing []int) bool {
	size := 1
	if q.h.o.Many {
		size = maxTogether
	}
	parts := make(chan []int)
	var workers sync.WaitGroup
	for range min(maxCallerRequests, (len(missing)+size-1)/size) {
		workers.Go(func() {
			for part := range parts {
				q.askPart(ctx, part)
			}
		})
	}
	for len(missing) > 0 && !q.hasFailed(ctx) {
		n := min(size, len(missing))
		parts <- missing[:n]
		missing = missing[n:]
	}
	close(parts)
	workers.Wait()
	q.mu.Lock() // a request that continues after the end of ctx may still write
	defer q.mu.Unlock()
	return !q.failed && len(missing) == 0
}

// hasFailed reports whether the question has failed. It fails if ctx has ended.
func (q *manyQuestion) hasFailed(ctx context.Context) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failed = q.failed || ctx.Err() != nil
	return q.failed
}

// askPart sends one request, and waits for its answer until ctx ends.
func (q *manyQuestion) askPart(ctx context.Context, part []int) {
	select {
	case q.h.manySlots <- struct{}{}:
	case <-ctx.Done():
		q.hasFailed(ctx)
		return
	}
	if q.hasFailed(ctx) {
		<-q.h.manySlots
		return
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		defer func() { <-q.h.manySlots }()
		q.requestPart(part)
	}()
	select {
	case <-answered:
	case <-ctx.Done():
		q.hasFailed(ctx)
	}
}

// requestPart sends one request and fills in its answers.
func (q *manyQuestion) requestPart(part []int) {
	allowed, err := q.request(part)
	if err == nil {
		q.h.cacheView(q.view, q.repos, part, allowed)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err != nil {
		q.failed = true
		return
	}
	for n, i := range part {
		q.allowed[i] = allowed[n]
	}
}

// request asks the hook about one repository, or about several if it supports that.
func (q *manyQuestion) request(part []int) ([]bool, error) {
	names := make([]string, len(part))
	for n, i := range part {
		names[n] = strings.Join(pathOf(q.repos[i]), "/")
	}
	text := question{Question: readable, Repositories: names}
	if !q.h.o.Many {
		text = question{Question: authorize, Repository: names[0]}
	}
	text.Operation, text.Client, text.Identity = Read.String(), q.id.Address, hookIdentityOf(q.id)
	a, err := q.h.request(text, nil)
	if err != nil {
		return nil, err
	}
	if !q.h.o.Many {
		return []bool{a.Allow}, nil
	}
	listed := make(map[string]bool, len(a.Repositories))
	for _, name := range a.Repositories {
		listed[name] = a.Allow
	}
	allowed := make([]bool, len(names))
	for n, name := range names {
		allowed[n] = listed[name]
	}
	return allowed, nil
}

// cacheView caches answers.
func (h *Hook) cacheView(v *view, repos []git.RepoPath, part []int, allowed []bool) {
	until := h.o.Now().Add(h.o.TTL).UnixNano()
	v.mu.Lock()
	for n, i := range part {
		v.answers[repos[i]] = viewAnswer{until, allowed[n]}
	}
	count := len(v.answers)
	v.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if cached, ok := h.views.Peek(v.key); !ok || cached != v {
		return // evicted meanwhile
	}
	if count > v.counted { // otherwise a concurrent call has counted these answers
		h.viewAnswers += count - v.counted
		v.counted = count
	}
	for h.viewAnswers > viewFactor*h.o.Size {
		h.views.RemoveOldest()
	}
}
