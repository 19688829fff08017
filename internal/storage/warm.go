package storage

import (
	"context"
	"slices"
	"sync"

	"github.com/packhorse-git/packhorse/internal/git"
)

// maxWarm is the maximum number of repositories that wait for a warm-up. The next fetches from further ones are misses.
const maxWarm = 100

// warmer fills the cache with the popular packs of a repository after each change of its refs, one repository after the
// other. Another change of the same repository restarts its warm-up, because the tip has changed.
type warmer struct {
	node *Node

	ctx     context.Context
	end     context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	started bool // run is running
	queue   []git.RepoPath
	current git.RepoPath
	stop    context.CancelFunc // of the current one; nil: none
}

func newWarmer(n *Node) *warmer {
	w := &warmer{node: n}
	w.ctx, w.end = context.WithCancel(context.Background())
	return w
}

// changed schedules a warm-up. It never blocks.
func (w *warmer) changed(path git.RepoPath) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil || len(w.queue) == maxWarm {
		return
	}
	if w.stop != nil && w.current == path {
		w.stop()
	}
	if slices.Contains(w.queue, path) {
		return
	}
	w.queue = append(w.queue, path)
	if !w.started {
		w.started = true
		w.running.Go(func() {
			for w.next() {
			}
		})
	}
}

// next warms up the first repository of the queue. It reports false if the queue is empty or the node closes.
func (w *warmer) next() bool {
	w.mu.Lock()
	if len(w.queue) == 0 || w.ctx.Err() != nil {
		w.started = false
		w.mu.Unlock()
		return false
	}
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	w.current, w.stop = w.queue[0], cancel
	w.queue = w.queue[1:]
	path := w.current
	w.mu.Unlock()
	if h, err := w.node.acquire(path); err == nil {
		w.node.server.WarmUp(ctx, h.Repo)
		w.node.release(h)
	}
	w.mu.Lock()
	w.stop = nil
	w.mu.Unlock()
	return true
}

func (w *warmer) close() {
	w.mu.Lock()
	w.end()
	w.mu.Unlock()
	w.running.Wait()
}
