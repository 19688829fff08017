package storage

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
)

// maxWarm is the maximum number of repositories in a warm-up. The next fetches from further ones are misses.
const maxWarm = 100

// warmer fills the cache with the popular packs of a repository after each change of its refs. Packs that are quick to
// make are made at once, while the report of a push waits. The others are made in the background, one repository after
// the other.
type warmer struct {
	node *Node

	ctx     context.Context
	end     context.CancelFunc
	running sync.WaitGroup
	turn    *semaphore.Weighted // held to make packs that are not quick to make

	mu   sync.Mutex
	runs map[git.RepoPath]*warmupRun
}

// warmupRun is the warm-up of one repository. Another change of its refs restarts it, because the tips have changed.
type warmupRun struct {
	stop context.CancelFunc // nil: the first round has not begun
	next chan struct{}      // closed when the quick packs of the next round are made; nil: there is no next round
}

func newWarmer(n *Node) *warmer {
	w := &warmer{node: n, turn: semaphore.NewWeighted(1), runs: make(map[git.RepoPath]*warmupRun)}
	w.ctx, w.end = context.WithCancel(context.Background())
	return w
}

// changed starts or restarts the warm-up of a repository. It never blocks. prepared is closed when the packs that are
// quick to make are there; nil: there is no warm-up.
func (w *warmer) changed(path git.RepoPath) (prepared <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	run := w.runs[path]
	switch {
	case w.ctx.Err() != nil, run == nil && len(w.runs) == maxWarm:
		return nil
	case run == nil:
		run = &warmupRun{next: make(chan struct{})}
		w.runs[path] = run
		w.running.Go(func() {
			for w.round(path, run) {
			}
		})
	default:
		if run.stop != nil {
			run.stop()
		}
		if run.next == nil {
			run.next = make(chan struct{})
		}
	}
	return run.next
}

// round warms up a repository for its current tips. It reports false if there is no change since the last round, or if
// the node closes.
func (w *warmer) round(path git.RepoPath, run *warmupRun) bool {
	w.mu.Lock()
	prepared := run.next
	if prepared == nil || w.ctx.Err() != nil {
		delete(w.runs, path)
		w.mu.Unlock()
		if prepared != nil {
			close(prepared)
		}
		return false
	}
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	run.stop, run.next = cancel, nil
	w.mu.Unlock()
	made := w.warmUp(ctx, path, true, 0)
	close(prepared)
	if w.turn.Acquire(ctx, 1) == nil {
		w.warmUp(ctx, path, false, made)
		w.turn.Release(1)
	}
	return true
}

// warmUp makes the popular packs of a repository, or only the quick ones. made is the number of packs made since the
// change, before and after.
func (w *warmer) warmUp(ctx context.Context, path git.RepoPath, onlyQuick bool, made int) int {
	h, err := w.node.acquire(ctx, path)
	if err != nil {
		return made
	}
	defer w.node.release(h)
	return w.node.server.WarmUp(ctx, h.Repo, onlyQuick, made)
}

// wait waits until the packs that are quick to make are there, but at most uploadpack.QuickWarmup, and returns how long
// that took. It does not wait if the repository is not expected to have such packs.
func (w *warmer) wait(ctx context.Context, h *handle, prepared <-chan struct{}) time.Duration {
	if !w.node.server.HasQuickWarmup(h.Repo) {
		return 0
	}
	start := time.Now()
	timer := time.NewTimer(uploadpack.QuickWarmup)
	defer timer.Stop()
	select {
	case <-prepared:
	case <-timer.C:
	case <-ctx.Done():
	}
	return time.Since(start)
}

func (w *warmer) close() {
	w.mu.Lock()
	w.end()
	w.mu.Unlock()
	w.running.Wait()
}
