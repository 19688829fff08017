package search

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/packhorse-git/packhorse/internal/proto/workerv1"
	"github.com/packhorse-git/packhorse/internal/search/ipc"
)

// The process that searches watches the directory of shards and loads new ones, a moment after they are there: more
// than a moment on a machine with much to do, and within a minute where the kernel told it of them between its first
// look and its beginning to watch. So what was indexed for the first time goes on being searched without an index until
// that process says that it has all of it: nothing found there would be a lie. What was indexed before is found at the
// commit of its old shards meanwhile, and said to be.

const (
	firstLoadCheck = 10 * time.Millisecond
	lastLoadCheck  = 2 * time.Second
	// pokeAfter is how long something may not have been loaded before the process is made to look at the directory again.
	pokeAfter = 300 * time.Millisecond
	// pokeFile is made for that, and removed. To zoekt it is what is known of a shard, which it looks for; there is none.
	pokeFile = "look.meta"
	// loadTimeout bounds one question, in ms.
	loadTimeout = 5000
)

// unload notes that a repository's shards, of which there was none before, are to be loaded. The caller holds e.mu.
func (e *Engine) unload(r *repository, shards int) {
	e.unloaded[r], e.stale = shards, true
	select {
	case e.load <- struct{}{}:
	default:
	}
}

// searchable tells whether a repository has an index that is searched. The caller holds e.mu.
func (e *Engine) searchable(r *repository) bool {
	_, unloaded := e.unloaded[r]
	return len(r.indexed) > 0 && !unloaded
}

// awaitLoads asks, as long as something is not loaded, whether it is.
func (e *Engine) awaitLoads() {
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-e.load:
		}
		wait, slept := firstLoadCheck, time.Duration(0)
		for e.checkLoads() {
			if slept >= pokeAfter {
				e.poke()
				slept = 0
			}
			select {
			case <-e.ctx.Done():
				return
			case <-e.load: // more
				wait = firstLoadCheck
			case <-time.After(wait):
				slept += wait
				wait = min(2*wait, lastLoadCheck)
			}
		}
	}
}

// checkLoads asks the process that searches what it has loaded of what is missing, and tells whether any of it is
// missing still.
func (e *Engine) checkLoads() bool {
	var set ipc.Set
	e.mu.Lock()
	for r := range e.unloaded {
		if len(r.indexed) == 0 || e.repos[r.path] != r {
			delete(e.unloaded, r)
			continue
		}
		set.Add(r.id)
	}
	e.mu.Unlock()
	if len(set) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(e.ctx, loadTimeout*time.Millisecond)
	defer cancel()
	request := &workerv1.SearchRequest{ListShards: true, Repositories: &workerv1.RepositorySet{Bits: set},
		TimeoutMs: loadTimeout}
	end, err := e.searching.ask(ctx, request, func(Batch) error { return nil })
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		for _, f := range end.Repositories {
			r := e.byID[f.Id]
			if shards, missing := e.unloaded[r]; missing && int(f.Shards) >= shards {
				delete(e.unloaded, r)
				e.stale = true
			}
		}
	}
	return len(e.unloaded) > 0
}

// poke makes the process that searches look at the directory. If it cannot, that looks each minute.
func (e *Engine) poke() {
	name := filepath.Join(e.shards(), pokeFile)
	if f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600); err == nil {
		f.Close()
		os.Remove(name)
	}
}
