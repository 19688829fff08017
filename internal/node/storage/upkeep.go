package storage

import (
	"context"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

// Upkeep configures when a node maintains a repository automatically. After changes of its refs the node counts the
// files that are new since the last maintenance. One count that is reached is enough. Zero values mean the defaults.
type Upkeep struct {
	Loose     int // new loose objects. Default 1,000.
	Packs     int // new packs. Default 20.
	LooseRefs int // Default 500.
	// Quiet is the time without changes of refs before a check. A check waits at most 10 times that, and after many
	// changes a fifth of it, or as long as the last maintenance took. Default 10 s.
	Quiet time.Duration
	Pause time.Duration // time until the next attempt after a failure. Default one hour.
}

const (
	maxPending    = 10_000 // repositories to check; further ones wait for their next push
	maxMaintained = 10_000 // repositories whose state after maintenance is kept
	looseRefWalk  = 100    // directory entries that are read for each loose ref to find
)

// upkeep checks repositories after changes of their refs, and maintains those that need it, one after the other.
type upkeep struct {
	node *Node
	Upkeep
	metrics *metrics

	ctx     context.Context
	end     context.CancelFunc
	running sync.WaitGroup
	wake    chan struct{} // has a token while pending has new repositories

	mu      sync.Mutex
	started bool
	pending map[git.RepoPath]change

	maintained map[string]maintainedState // by common directory; only for run
	took       time.Duration              // of the last maintenance; only for run
}

// change has the times of the first and the last change of a repository's refs since the last check, and their number.
type change struct {
	first, last time.Time
	n           int
}

// manyChanges is how many times more changes than Upkeep.Packs make a check urgent: Git gets slower with each pack.
const manyChanges = 5

// maintainedState is the state of a repository after maintenance.
type maintainedState struct {
	packs, loose int64
	pausedUntil  time.Time
}

func newUpkeep(n *Node, when Upkeep) *upkeep {
	for value, standard := range map[*int]int{&when.Loose: 1000, &when.Packs: 20, &when.LooseRefs: 500} {
		if *value <= 0 {
			*value = standard
		}
	}
	for value, standard := range map[*time.Duration]time.Duration{&when.Quiet: 10 * time.Second, &when.Pause: time.Hour} {
		if *value <= 0 {
			*value = standard
		}
	}
	u := &upkeep{node: n, Upkeep: when, metrics: n.metrics, wake: make(chan struct{}, 1),
		pending: map[git.RepoPath]change{}, maintained: map[string]maintainedState{}}
	u.ctx, u.end = context.WithCancel(context.Background())
	return u
}

// changed schedules a check. It never blocks.
func (u *upkeep) changed(path git.RepoPath) {
	now := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ctx.Err() != nil {
		return
	}
	c, ok := u.pending[path]
	if !ok {
		if len(u.pending) == maxPending {
			u.metrics.upkeep.WithLabelValues("dropped").Inc()
			return
		}
		c.first = now
	}
	c.last = now
	c.n++
	u.pending[path] = c
	if !u.started {
		u.started = true
		u.running.Go(u.run)
	}
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

func (u *upkeep) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		path, wait := u.next(time.Now())
		if wait == 0 {
			u.maintainIfDue(path)
			continue
		}
		timer.Reset(wait)
		select {
		case <-u.ctx.Done():
			return
		case <-u.wake:
		case <-timer.C:
		}
	}
}

// next removes and returns the repository that is due and has waited longest. If there is no such repository, or the
// node closes, it returns how long to wait, which is not zero.
func (u *upkeep) next(now time.Time) (path git.RepoPath, wait time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ctx.Err() != nil {
		return path, time.Hour
	}
	wait = time.Hour
	var oldest time.Time
	for p, c := range u.pending {
		due := min(c.last.Add(u.Quiet).Sub(now), c.first.Add(10*u.Quiet).Sub(now))
		if c.n >= manyChanges*u.Packs {
			due = min(due, c.first.Add(max(u.Quiet/5, u.took)).Sub(now))
		}
		switch {
		case due > 0:
			if oldest.IsZero() {
				wait = min(wait, due)
			}
		case oldest.IsZero() || c.first.Before(oldest):
			path, oldest, wait = p, c.first, 0
		}
	}
	if wait == 0 {
		delete(u.pending, path)
	}
	return path, wait
}

// maintainIfDue maintains a repository if it needs that.
func (u *upkeep) maintainIfDue(path git.RepoPath) {
	outcome, err := u.check(path)
	u.metrics.upkeep.WithLabelValues(outcome).Inc()
	switch {
	case err == nil || u.ctx.Err() != nil || fault.Is(err, fault.NotFound):
	case fault.Is(err, fault.Exhausted): // it is being maintained: check again later
		u.changed(path)
	default:
		u.node.log.Warn("cannot maintain a repository", "repository", path.String(), "error", err)
	}
}

// check maintains a repository if it needs that, and returns the outcome for the metric.
func (u *upkeep) check(path git.RepoPath) (outcome string, err error) {
	n := u.node
	h, err := n.acquireAny(u.ctx, path)
	if err != nil {
		return "failed", err
	}
	defer n.release(h)
	last := u.maintained[h.Common]
	if time.Now().Before(last.pausedUntil) {
		return "paused", nil
	}
	now, err := h.place.Counts(u.ctx)
	if err != nil {
		return "failed", err
	}
	refs := u.manyLooseRefs(h.Common)
	if now.Loose-last.loose < int64(u.Loose) && now.Packs-last.packs < int64(u.Packs) && !refs {
		return "not_due", nil
	}
	if n.pushes != nil {
		if err := n.pushes.BeforeMaintenance(u.ctx, h.Repo, path); err != nil {
			u.remember(h.Common, pack.Counts{Packs: last.packs, Loose: last.loose}, time.Now().Add(u.Pause))
			return "declined", nil
		}
	}
	start := time.Now()
	m, err := n.maintainHandle(u.ctx, h, path, refs)
	u.took = time.Since(start)
	if err == nil {
		u.remember(h.Common, m.After, time.Time{})
		return "due", nil
	}
	if !fault.Is(err, fault.Exhausted) {
		u.remember(h.Common, pack.Counts{}, time.Now().Add(u.Pause))
	}
	return "failed", err
}

// remember keeps the state of a repository after maintenance.
func (u *upkeep) remember(commonDir string, now pack.Counts, until time.Time) {
	if len(u.maintained) >= maxMaintained { // a forgotten one is maintained once too often at most
		for dir := range u.maintained {
			delete(u.maintained, dir)
			break
		}
	}
	u.maintained[commonDir] = maintainedState{packs: now.Packs, loose: now.Loose, pausedUntil: until}
}

// manyLooseRefs reports whether the refs need packing. It gives up if it finds too many other files.
func (u *upkeep) manyLooseRefs(commonDir string) bool {
	seen, found := 0, 0
	_ = filepath.WalkDir(filepath.Join(commonDir, "refs"), func(path string, e fs.DirEntry, err error) error {
		if seen++; seen > looseRefWalk*u.LooseRefs || found >= u.LooseRefs || u.ctx.Err() != nil {
			return fs.SkipAll
		}
		if err == nil && e.Type().IsRegular() && !strings.HasSuffix(path, ".lock") {
			found++
		}
		return nil
	})
	return found >= u.LooseRefs
}

func (u *upkeep) close() {
	u.mu.Lock()
	u.end()
	u.mu.Unlock()
	u.running.Wait()
}

// Maintains reports whether the node maintains repositories automatically.
func (n *Node) Maintains() bool { return n.upkeep != nil }
