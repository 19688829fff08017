package search

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

const (
	// watchTogether is how many repositories one watch names at most.
	watchTogether = 5000
	// maxWatches is how many watches there are before they are made one again.
	maxWatches = 16
	// slowWatch is how long to wait until a watch is tried again that has ended.
	slowWatch = 2 * time.Second
	// fewWatched is how many repositories are not asked for in smaller parts where a source watches no more.
	fewWatched = 500
	// lookScans is how many times as long as a scan is between two looks at a repository that is not watched.
	lookScans = 5
)

// discover lists the repositories again and again and has those watched that are new.
func (e *Engine) discover() {
	watched := map[git.RepoPath]bool{}
	var now struct { // the watches there are
		ctx context.Context
		end context.CancelFunc
		n   int
	}
	defer func() {
		if now.end != nil {
			now.end()
		}
	}()
	complaint := ""
	for e.ctx.Err() == nil {
		began := time.Now()
		var fresh []git.RepoPath
		there := make(map[git.RepoPath]bool, len(watched))
		err := e.o.Source.Repositories(e.ctx, func(path git.RepoPath) error {
			there[path] = true
			if !watched[path] {
				fresh = append(fresh, path)
			}
			return nil
		})
		if err == nil {
			complaint = ""
			e.forgetOthers(there)
		} else if err.Error() != complaint && e.ctx.Err() == nil {
			complaint = err.Error()
			e.log.Warn("cannot list all repositories to index; it is tried again and again", "error", err)
		}
		if now.end == nil || now.n >= maxWatches && len(fresh) > 0 && err == nil {
			if now.end != nil {
				now.end()
			}
			now.ctx, now.end = context.WithCancel(e.ctx)
			now.n, fresh, watched = 0, slices.Collect(maps.Keys(there)), there
		}
		for part := range slices.Chunk(fresh, watchTogether) {
			now.n++
			e.watch(now.ctx, part)
			for _, path := range part {
				watched[path] = true
			}
		}
		e.compareShards()
		if !e.sleep(max(e.o.Scan, 20*time.Since(began))) {
			return
		}
	}
}

// forgetOthers has a look at what is known and was not listed.
func (e *Engine) forgetOthers(there map[git.RepoPath]bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for path, r := range e.repos {
		if !there[path] {
			e.enqueue(r, laneLook, time.Now())
		}
	}
	e.ready = true
}

// watch follows some repositories until ctx ends. Of more than the source has watched some are: the rest is looked at
// again and again.
func (e *Engine) watch(ctx context.Context, paths []git.RepoPath) {
	e.running.Go(func() {
		unwatched := 0
		defer func() { e.countUnwatched(-unwatched) }()
		for ctx.Err() == nil {
			err := e.o.Source.Watch(ctx, paths, func(path git.RepoPath, version git.Version, gone bool) error {
				e.countUnwatched(-unwatched)
				unwatched = 0
				e.event(path, version, gone)
				return nil
			})
			if ctx.Err() != nil {
				return
			}
			wait := slowWatch
			switch full := fault.Is(err, fault.Exhausted); {
			case full && len(paths) > fewWatched:
				half := len(paths) / 2
				e.watch(ctx, paths[half:])
				paths = paths[:half]
				continue
			case full && unwatched == 0:
				unwatched = len(paths)
				e.countUnwatched(unwatched)
				fallthrough
			case full:
				wait = max(wait, fault.RetryAfter(err))
			default:
				e.log.Warn("the watch over repositories to index has ended; it is tried again", "error", err, "in", wait.String())
			}
			if !e.lookInstead(ctx, paths, wait) {
				return
			}
		}
	})
}

// lookInstead has repositories looked at for some time, in place of a watch. It tells whether the time is over, and not
// ctx.
func (e *Engine) lookInstead(ctx context.Context, paths []git.RepoPath, d time.Duration) bool {
	for end := time.Now().Add(d); ; {
		e.mu.Lock()
		for _, path := range paths {
			e.expect(path)
		}
		e.mu.Unlock()
		rest := time.Until(end)
		if !e.sleep(max(0, min(rest, lookScans*e.o.Scan))) || ctx.Err() != nil {
			return false
		}
		if time.Until(end) <= 0 {
			return true
		}
	}
}

// expect has a repository looked at that may be new. The caller holds e.mu.
func (e *Engine) expect(path git.RepoPath) {
	r := e.repos[path]
	if r == nil {
		r = &repository{path: path, lag: -1}
		e.repos[path] = r
	}
	e.enqueue(r, laneLook, time.Now())
}

// Refresh lists the repositories, so that Status knows of those that were just made.
func (e *Engine) Refresh(ctx context.Context) error {
	var paths []git.RepoPath
	err := e.o.Source.Repositories(ctx, func(path git.RepoPath) error {
		paths = append(paths, path)
		return nil
	})
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, path := range paths {
		if e.repos[path] == nil {
			e.expect(path)
		}
	}
	return nil
}

// countUnwatched counts repositories that the source does not watch for us, and says when there are some, and when
// there are none any more.
func (e *Engine) countUnwatched(n int) {
	if n == 0 {
		return
	}
	e.mu.Lock()
	before := e.unwatched
	e.unwatched += n
	now := e.unwatched
	e.mu.Unlock()
	e.metrics.unwatched.Set(float64(now))
	switch {
	case before == 0:
		e.log.Warn("too many repositories to watch: some are polled", "every", (lookScans * e.o.Scan).String())
	case now == 0 && e.ctx.Err() == nil:
		e.log.Info("all repositories to index are watched again")
	}
}
