package search

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/proto/workerv1"
	"github.com/packhorse-git/packhorse/internal/search/ipc"
	"github.com/packhorse-git/packhorse/internal/search/schema"
)

// progressEvery is the minimum interval between progress reports of a search.
const progressEvery = 100 * time.Millisecond

// Search performs a search. See Searcher.
func (e *Engine) Search(ctx context.Context, request Request, sink Sink) (Summary, error) {
	start := time.Now()
	e.metrics.running.Inc()
	summary, err := e.search(ctx, request, sink, start)
	e.metrics.running.Dec()
	result := "ok"
	if err != nil {
		result = fault.KindOf(err).String()
	}
	e.metrics.searches.WithLabelValues(result).Inc()
	e.metrics.seconds.Observe(time.Since(start).Seconds())
	return summary, err
}

func (e *Engine) search(ctx context.Context, request Request, sink Sink, start time.Time) (Summary, error) {
	if q := request.Query; q.Count != 0 {
		request.Limit = q.Count
	}
	if q := request.Query; q.Timeout != 0 {
		request.Timeout = q.Timeout
	}
	limit, timeout := bound(request.Limit, 1, e.o.Results), bound(request.Timeout, time.Millisecond, e.o.Timeout)
	search := &workerv1.SearchRequest{
		Query: request.Query.Text, Format: int32(request.Format), Limit: int32(limit),
		TimeoutMs: int32(timeout.Milliseconds()),
	}
	set, bares, whole, unavailable := e.scope(request.May)
	if unavailable != "" {
		return Summary{}, fault.Retry(fault.Unavailable, fault.RetryMuchLater, "%s", unavailable)
	}
	if request.May != nil {
		search.Repositories = &workerv1.RepositorySet{Bits: set}
	}
	// the process observes the time limit; this is a safeguard
	ctx, cancel := context.WithTimeout(ctx, timeout+time.Second)
	defer cancel()

	var s Summary
	var lastProgress time.Time
	var sinkTime time.Duration // time spent in sink
	sent := time.Now()
	end, err := e.searchWorker.ask(ctx, search, func(b Batch) error {
		arrival := time.Now()
		defer func() { sinkTime += time.Since(arrival) }()
		s.Results += b.Results
		s.Matches += b.Matches
		if err := sink.Matches(b); err != nil {
			return err
		}
		if arrival.Sub(lastProgress) >= progressEvery {
			lastProgress = arrival
			s.Elapsed = arrival.Sub(start)
			return sink.Progress(s)
		}
		return nil
	})
	if err != nil {
		s.Elapsed = time.Since(start)
		return s, err
	}
	s.Index = time.Duration(end.DurationUs) * time.Microsecond
	s.Link = max(0, time.Since(sent)-s.Index-sinkTime) // zero if the process worked while sink took results
	if end.Crashed {
		e.log.Warn("some index shards could not be searched", "query", request.Query.Text)
	}
	s.Limited, s.TimedOut = end.Limited || end.Crashed, end.TimedOut || !whole
	s.Repositories, s.Searched = e.freshness(ctx, end.Repositories),
		e.indexed(set, search.Repositories != nil, repositoryConditions(request.Query))
	if len(bares) > 0 {
		g, loaded := newGrepQuery(request.Query), e.paths(end.Repositories) // meanwhile
		bares = slices.DeleteFunc(bares, func(b bare) bool {
			return loaded[b.path] || !holdsAll(g.repos, strings.TrimSuffix(b.path.String(), ".git"))
		})
		if err := e.searchBare(ctx, bares, &g, request, limit, sink, &s); err != nil {
			return s, err
		}
	}
	s.Notices = e.notices(ctx, request)
	s.Done, s.Elapsed = true, time.Since(start)
	return s, nil
}

// bound returns the requested value, or the maximum.
func bound[T int | time.Duration](requested, least, most T) T {
	if requested <= 0 {
		return most
	}
	return max(least, min(requested, most))
}

// scope returns the repositories that the caller may read, with and without an index. May is called without a lock,
// because it may need a request to another process. If whole is false, access to some repositories could not be
// determined.
func (e *Engine) scope(may Readable) (set ipc.Set, bares []bare, whole bool, unavailable string) {
	e.mu.Lock()
	e.count()
	list, ids, without, unavailable := e.candidates, e.candidateIDs, e.bareCount, e.unavailable
	if unavailable == "" && !e.ready && len(e.repos) == 0 { // an empty result would be wrong
		unavailable = "it is not known yet which repositories there are; try again in a moment"
	}
	e.mu.Unlock()
	if unavailable != "" || may == nil && without == 0 {
		return nil, nil, true, unavailable
	}
	whole = true
	var readable []bool
	if may != nil {
		readable, whole = may(list)
	}
	var unindexed []git.RepoPath
	for i, path := range list {
		switch {
		case may != nil && !readable[i]:
		case ids[i] == 0:
			unindexed = append(unindexed, path)
		case may != nil:
			set.Add(ids[i])
		}
	}
	if len(unindexed) == 0 {
		return set, nil, whole, ""
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, path := range unindexed {
		switch r := e.repos[path]; {
		case r == nil:
		case e.searchable(r): // loaded since
			if may != nil {
				set.Add(r.id)
			}
		case r.hasCurrent && len(r.current) > 0:
			bares = append(bares, bare{path: path, head: r.current[0], reason: r.err, isLarge: r.tooLarge != nil})
		case !r.hasCurrent && r.err != "": // its refs cannot be read
			bares = append(bares, bare{path: path, reason: r.err, isLarge: true})
		}
	}
	slices.SortFunc(bares, func(a, b bare) int { return strings.Compare(a.path.String(), b.path.String()) })
	return set, bares, whole, ""
}

// paths returns the paths of repositories with results. A repository without a number at the start of the search may
// have one by now.
func (e *Engine) paths(found []*workerv1.FoundRepository) map[git.RepoPath]bool {
	paths := make(map[git.RepoPath]bool, len(found))
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range found {
		if r := e.byID[f.Id]; r != nil {
			paths[r.path] = true
		}
	}
	return paths
}

// readableFunc evaluates may for every repository without the lock. Nil stays nil.
func (e *Engine) readableFunc(may Readable) func(git.RepoPath) bool {
	if may == nil {
		return nil
	}
	e.mu.Lock()
	paths := slices.Collect(maps.Keys(e.repos))
	e.mu.Unlock()
	list, _ := may(paths)
	readable := make(map[git.RepoPath]bool, len(paths))
	for i, path := range paths {
		readable[path] = list[i]
	}
	return func(path git.RepoPath) bool { return readable[path] }
}

// indexed returns the number of repositories with an index that meet conditions, in a set or in all.
func (e *Engine) indexed(set ipc.Set, limited bool, conditions []condition) (n int) {
	if limited && len(conditions) == 0 {
		return set.Len()
	}
	e.mu.Lock()
	e.count()
	list, ids, all := e.candidates, e.candidateIDs, e.indexedCount
	e.mu.Unlock()
	if len(conditions) == 0 {
		return all
	}
	for i, path := range list {
		if ids[i] != 0 && (!limited || set.Has(ids[i])) && holdsAll(conditions, schema.Name(path.String())) {
			n++
		}
	}
	return n
}

// count lists and counts repositories with an index, and non-empty ones without, if this may have changed. The caller
// holds e.mu. Lists are immutable.
func (e *Engine) count() {
	if !e.recount {
		return
	}
	e.recount, e.indexedCount, e.bareCount = false, 0, 0
	e.candidates, e.candidateIDs = make([]git.RepoPath, 0, len(e.repos)), make([]uint32, 0, len(e.repos))
	for path, r := range e.repos {
		id := r.id
		switch {
		case e.searchable(r):
			e.indexedCount++
		case r.hasCurrent && len(r.current) > 0, !r.hasCurrent && r.err != "":
			e.bareCount++
			id = 0
		default:
			continue
		}
		e.candidates, e.candidateIDs = append(e.candidates, path), append(e.candidateIDs, id)
	}
}

const (
	// maxFreshnessChecks is the maximum number of repositories whose branches are determined while a search waits, and
	// freshnessTimeout the time limit.
	maxFreshnessChecks = 100
	freshnessTimeout   = time.Second
)

// freshness returns the freshness of repositories with results. It checks those whose refs have changed.
func (e *Engine) freshness(ctx context.Context, found []*workerv1.FoundRepository) []Freshness {
	list := make([]Freshness, 0, len(found))
	unsure := make(map[int]git.RepoPath) // by their index in list
	e.mu.Lock()
	for _, f := range found {
		r := e.byID[f.Id]
		if r == nil {
			continue // removed meanwhile
		}
		if r.inCheck || !r.due[laneCheck].IsZero() {
			unsure[len(list)] = r.path
		}
		list = append(list, r.freshness(f))
	}
	e.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, freshnessTimeout)
	defer cancel()
	checks := 0
	for i, path := range unsure {
		f := &list[i]
		if checks++; checks <= maxFreshnessChecks {
			if heads, _, err := e.heads(ctx, path); err == nil {
				f.now(heads)
				continue
			}
		}
		f.Current, f.Lag = "", -1
	}
	slices.SortFunc(list, func(a, b Freshness) int { return strings.Compare(a.Repository, b.Repository) })
	return list
}

// freshness returns the freshness of a result as of the last check of its repository. The caller holds Engine.mu.
func (r *repository) freshness(f *workerv1.FoundRepository) Freshness {
	for _, b := range r.indexed {
		if b.Commit == f.Commit {
			f.Branch = b.Name // a file in several branches counts for the first one
			break
		}
	}
	fresh := Freshness{Repository: schema.Name(r.path.String()), Indexed: f.Commit, Branch: f.Branch, Lag: -1,
		Error: r.err}
	fresh.now(r.current)
	if len(r.current) > 0 && fresh.Lag < 0 && branchName(r.current[0].Name) == f.Branch && len(r.indexed) > 0 &&
		r.indexed[0].Commit == f.Commit {
		fresh.Lag = r.lag
	}
	return fresh
}

// now sets the current commit of the branch, and a lag of zero if the index is current.
func (f *Freshness) now(heads []Head) {
	current := ""
	for _, h := range heads {
		if branchName(h.Name) == f.Branch {
			current = h.Commit.String()
			break
		}
	}
	switch {
	case current == f.Indexed:
		f.Lag = 0
	case current != f.Current:
		f.Lag = -1
	}
	f.Current = current
}
