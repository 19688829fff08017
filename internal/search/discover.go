package search

import (
	"context"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
)

const (
	// watchTogether is how many repositories one watch names at most.
	watchTogether = 5000
	// maxWatches is how many watches there are before they are made one again.
	maxWatches = 16
	// slowWatch is how long to wait until a watch is tried again that has ended.
	slowWatch = 2 * time.Second
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
		if err != nil && e.ctx.Err() == nil {
			e.log.Warn("cannot list the repositories to index", "error", err)
		}
		if err == nil {
			e.forgetOthers(there)
			if now.end == nil || now.n >= maxWatches && len(fresh) > 0 {
				if now.end != nil {
					now.end()
				}
				now.ctx, now.end = context.WithCancel(e.ctx)
				now.n, fresh, watched = 0, nil, there
				for path := range there {
					fresh = append(fresh, path)
				}
			}
			for len(fresh) > 0 {
				n := min(len(fresh), watchTogether)
				now.n++
				e.watch(now.ctx, fresh[:n])
				for _, path := range fresh[:n] {
					watched[path] = true
				}
				fresh = fresh[n:]
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

// watch follows some repositories until ctx ends.
func (e *Engine) watch(ctx context.Context, paths []git.RepoPath) {
	e.running.Go(func() {
		for ctx.Err() == nil {
			err := e.o.Source.Watch(ctx, paths, func(path git.RepoPath, version git.Version, gone bool) error {
				e.event(path, version, gone)
				return nil
			})
			if ctx.Err() != nil {
				return
			}
			e.log.Warn("the watch over repositories to index has ended; it is tried again", "error", err, "in", slowWatch.String())
			// What happens meanwhile is found by looking.
			e.mu.Lock()
			for _, path := range paths {
				if r := e.repos[path]; r != nil {
					e.enqueue(r, laneLook, time.Now())
				} else {
					r = &repository{path: path, lag: -1}
					e.repos[path] = r
					e.enqueue(r, laneLook, time.Now())
				}
			}
			e.mu.Unlock()
			if !e.sleep(slowWatch) {
				return
			}
		}
	})
}
