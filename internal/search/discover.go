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
	// watchTogether is the maximum number of repositories of one watch.
	watchTogether = 5000
	// maxWatches is the number of watches above which they are combined.
	maxWatches = 16
	// slowWatch is the pause before a watch that ended is repeated.
	slowWatch = 2 * time.Second
	// fewWatched is the number of repositories below which a refused watch is not split.
	fewWatched = 500
	// lookScans is the interval between checks of a repository that is not watched, in scans.
	lookScans = 5
)

// discover lists the repositories periodically and watches new ones.
func (e *Engine) discover() {
	watched := map[git.RepoPath]bool{}
	var now struct { // the running watches
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
			e.removeOthers(there)
		} else if err.Error() != complaint && e.ctx.Err() == nil {
			complaint = err.Error()
			e.log.Warn("cannot list all repositories to index; trying again", "error", err)
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

// removeOthers checks known repositories that were not listed.
func (e *Engine) removeOthers(there map[git.RepoPath]bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for path, r := range e.repos {
		if !there[path] {
			e.enqueue(r, laneCheck, time.Now())
		}
	}
	e.ready = true
}

// watch follows repositories until ctx ends. If there are more than the source can watch, the others are polled.
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
				e.log.Warn("watch of repositories to index ended; trying again", "error", err, "in", wait.String())
			}
			if !e.poll(ctx, paths, wait) {
				return
			}
		}
	})
}

// poll polls repositories for some time instead of watching them. It returns false if ctx ended.
func (e *Engine) poll(ctx context.Context, paths []git.RepoPath, d time.Duration) bool {
	for end := time.Now().Add(d); ; {
		e.mu.Lock()
		for _, path := range paths {
			e.enqueue(e.repository(path), laneCheck, time.Now())
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

// Refresh lists the repositories, so that Status includes new ones.
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
			e.enqueue(e.repository(path), laneCheck, time.Now())
		}
	}
	return nil
}

// countUnwatched counts repositories that the source does not watch, and logs when there are some and when there are
// none again.
func (e *Engine) countUnwatched(n int) {
	if n == 0 {
		return
	}
	e.mu.Lock()
	before := e.unwatched
	e.unwatched += n
	now := e.unwatched
	e.metrics.unwatched.Set(float64(now)) // with the lock: an older value must not overwrite a newer one
	e.mu.Unlock()
	switch {
	case before == 0:
		e.log.Warn("too many repositories to watch: some are polled", "every", (lookScans * e.o.Scan).String())
	case now == 0 && e.ctx.Err() == nil:
		e.log.Info("all repositories to index are watched again")
	}
}
