package auth

import (
	"context"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

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
	// askTurns bounds the memory for turns. Callers who share one wait for each other.
	askTurns = 256
)

// viewKey names the cached answer whether a caller may read a repository.
type viewKey struct {
	caller string // hash
	repo   git.RepoPath
}

type viewAnswer struct {
	until int64 // Unix nanoseconds
	allow bool
}

// readable reports which of many repositories an identity may read. complete is false if some could not be determined
// within readableTime. If the hook supports it, one request covers many repositories. Questions of one caller take
// turns, so that the next one finds the answers.
func (h *Hook) readable(ctx context.Context, id Identity, repos []git.RepoPath) (allowed []bool, complete bool) {
	ctx, cancel := context.WithTimeout(ctx, h.readableTime)
	defer cancel()
	caller := h.hash(question{Question: readable, Client: id.Address, Identity: hookIdentityOf(id)})
	allowed = make([]bool, len(repos))
	if len(h.fromCache(caller, repos, 0, allowed)) == 0 {
		h.o.Metrics.question("hook", "cached")
		return allowed, true
	}
	turn := h.turns[caller[0]]
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
		if h.askMany(ctx, id, caller, repos, h.fromCache(caller, repos, 0, allowed), allowed) == nil {
			return allowed, true
		}
	case <-ctx.Done():
	}
	if !h.o.Stale {
		return allowed, false
	}
	h.o.Metrics.question("hook", "stale")
	return allowed, len(h.fromCache(caller, repos, maxStale, allowed)) == 0
}

// fromCache fills in answers that expired at most stale ago, and returns the indexes of the other repositories.
func (h *Hook) fromCache(caller string, repos []git.RepoPath, stale time.Duration, allowed []bool) (missing []int) {
	now := h.o.Now().Add(-stale).UnixNano()
	h.viewsMu.Lock()
	defer h.viewsMu.Unlock()
	for i, repo := range repos {
		if a, ok := h.views.Get(viewKey{caller, repo}); ok && now < a.until {
			allowed[i] = a.allow
		} else if utf8.ValidString(repo.String()) { // different invalid names would be equal in JSON
			missing = append(missing, i)
		}
	}
	return missing
}

// askMany asks about the repositories at some indexes, and fills in the answers. The first failure ends it.
func (h *Hook) askMany(ctx context.Context, id Identity, caller string, repos []git.RepoPath, indexes []int,
	allowed []bool) error {
	size := 1
	if h.o.Many {
		size = maxTogether
	}
	requests, running := errgroup.WithContext(ctx)
	requests.SetLimit(maxCallerRequests)
	for part := range slices.Chunk(indexes, size) {
		if running.Err() != nil {
			break
		}
		requests.Go(func() error {
			some := make([]git.RepoPath, len(part))
			for n, i := range part {
				some[n] = repos[i]
			}
			answers, err := h.askTogether(running, id, caller, some)
			for n, allow := range answers {
				allowed[part[n]] = allow
			}
			return err
		})
	}
	if err := requests.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// askTogether sends one request, and waits for its answers until ctx ends. The request continues after that.
func (h *Hook) askTogether(ctx context.Context, id Identity, caller string, repos []git.RepoPath) ([]bool, error) {
	select {
	case h.manySlots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var allowed []bool
	answered := make(chan error, 1)
	go func() {
		defer func() { <-h.manySlots }()
		var err error
		if allowed, err = h.requestMany(id, repos); err == nil {
			h.cacheView(caller, repos, allowed)
		}
		answered <- err
	}()
	select {
	case err := <-answered:
		return allowed, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// requestMany asks the hook about one repository, or about several if it supports that.
func (h *Hook) requestMany(id Identity, repos []git.RepoPath) ([]bool, error) {
	names := make([]string, len(repos))
	for i, repo := range repos {
		names[i] = strings.Join(pathOf(repo), "/")
	}
	text := question{Question: readable, Repositories: names}
	if !h.o.Many {
		text = question{Question: authorize, Repository: names[0]}
	}
	text.Operation, text.Client, text.Identity = Read.String(), id.Address, hookIdentityOf(id)
	a, err := h.request(text, nil)
	if err != nil {
		return nil, err
	}
	if !h.o.Many {
		return []bool{a.Allow}, nil
	}
	listed := make(map[string]bool, len(a.Repositories))
	for _, name := range a.Repositories {
		listed[name] = a.Allow
	}
	allowed := make([]bool, len(names))
	for i, name := range names {
		allowed[i] = listed[name]
	}
	return allowed, nil
}

// cacheView caches answers.
func (h *Hook) cacheView(caller string, repos []git.RepoPath, allowed []bool) {
	until := h.o.Now().Add(h.o.TTL).UnixNano()
	h.viewsMu.Lock()
	defer h.viewsMu.Unlock()
	for i, repo := range repos {
		h.views.Add(viewKey{caller, repo}, viewAnswer{until, allowed[i]})
	}
}
