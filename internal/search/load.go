package search

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/packhorse-git/packhorse/internal/proto/workerv1"
	"github.com/packhorse-git/packhorse/internal/search/ipc"
)

// The search worker watches the directory of shards and loads new ones after a moment. This takes longer on a busy
// machine. A change between its first scan and the start of its watch takes up to a minute. A new index is therefore
// used only when the worker reports that all its shards are loaded. Until then the repository is searched without an
// index, because an empty result would be wrong. An updated index returns results of the old commit meanwhile, and the
// results have that commit.

const (
	firstLoadCheck = 10 * time.Millisecond
	lastLoadCheck  = 2 * time.Second
	// pokeAfter is the time after which the process is made to scan the directory again.
	pokeAfter = 300 * time.Millisecond
	// pokeFile is created and removed for that. zoekt takes it for the metadata of a shard, and does not find that shard.
	pokeFile = "look.meta"
	// loadTimeout is the time limit of one request in ms.
	loadTimeout = 5000
)

// unload records that the first shards of a repository have to be loaded. The caller holds e.mu.
func (e *Engine) unload(r *repository, shards int) {
	e.unloaded[r], e.recount = shards, true
	select {
	case e.loadSignal <- struct{}{}:
	default:
	}
}

// searchable reports whether a repository has a loaded index. The caller holds e.mu.
func (e *Engine) searchable(r *repository) bool {
	_, unloaded := e.unloaded[r]
	return len(r.indexed) > 0 && !unloaded
}

// awaitLoads checks for loaded shards as long as some are missing.
func (e *Engine) awaitLoads() {
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-e.loadSignal:
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
			case <-e.loadSignal: // further shards
				wait = firstLoadCheck
			case <-time.After(wait):
				slept += wait
				wait = min(2*wait, lastLoadCheck)
			}
		}
	}
}

// checkLoads asks the search worker which missing shards it has loaded, and reports whether any is still missing.
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
	end, err := e.searchWorker.ask(ctx, request, func(Batch) error { return nil })
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		for _, f := range end.Repositories {
			r := e.byID[f.Id]
			if shards, missing := e.unloaded[r]; missing && int(f.Shards) >= shards {
				delete(e.unloaded, r)
				e.recount = true
			}
		}
	}
	return len(e.unloaded) > 0
}

// poke makes the search worker scan the directory. If this fails, the process scans every minute.
func (e *Engine) poke() {
	name := filepath.Join(e.shards(), pokeFile)
	if f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600); err == nil {
		f.Close()
		os.Remove(name)
	}
}
