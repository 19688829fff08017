package storage

import (
	"context"
	"sync"

	"github.com/packhorse-git/packhorse/internal/git"
)

// maxWarm is how many repositories wait to be warmed up; those beyond are served cold.
const maxWarm = 100

// warmer has the packs made that were popular, after each change of a repository's refs, for one repository after the other. A change of
// the one at hand begins it anew: what was being made is of a tip that is none any more.
type warmer struct {
	node *Node

	ctx     context.Context
	end     context.CancelFunc
	running sync.WaitGroup
	wake    chan struct{} // capacity 1: queue has more

	mu      sync.Mutex
	started bool
	queue   []git.RepoPath
	at      git.RepoPath
	stop    context.CancelFunc // of the one at hand; nil: none
}

func newWarmer(n *Node) *warmer {
	w := &warmer{node: n, wake: make(chan struct{}, 1)}
	w.ctx, w.end = context.WithCancel(context.Background())
	return w
}

// changed never waits.
func (w *warmer) changed(path git.RepoPath) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil || len(w.queue) == maxWarm {
		return
	}
	if w.stop != nil && w.at == path {
		w.stop()
	}
	for _, waits := range w.queue {
		if waits == path {
			return
		}
	}
	w.queue = append(w.queue, path)
	if !w.started {
		w.started = true
		w.running.Go(w.run)
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *warmer) run() {
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-w.wake:
		}
		for w.next() {
		}
	}
}

// next warms up the first repository of the queue, if there is one.
func (w *warmer) next() bool {
	w.mu.Lock()
	if len(w.queue) == 0 || w.ctx.Err() != nil {
		w.mu.Unlock()
		return false
	}
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	w.at, w.stop = w.queue[0], cancel
	w.queue = w.queue[1:]
	path := w.at
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
