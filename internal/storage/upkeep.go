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

// Upkeep says when a node maintains a repository by itself: after a change of its refs, if as much has come together since the last time.
// What is 0 has a default.
type Upkeep struct {
	Loose     int           // loose objects: 1,000
	Packs     int           // packs more than maintenance left: 20
	LooseRefs int           // 500
	Quiet     time.Duration // how long the refs have to stay as they are; 10 s, but it is looked at after ten times that at the latest
	Pause     time.Duration // how long a repository is left alone that could not be maintained: an hour
}

const (
	maxPending   = 10_000 // repositories to be looked at; those beyond wait for their next push
	maxUpkept    = 10_000 // repositories of which it is known how maintenance left them
	looseRefWalk = 100    // entries of the ref directories that are looked at for each loose ref that counts
)

// upkeep looks at repositories after changes of their refs and maintains those for which it is due, one after the other.
type upkeep struct {
	node *Node
	Upkeep
	metrics *Metrics

	ctx     context.Context
	end     context.CancelFunc
	running sync.WaitGroup
	wake    chan struct{} // capacity 1: pending has more

	mu      sync.Mutex
	started bool
	pending map[git.RepoPath]change

	upkept map[string]upkept // by common directory; of the one goroutine alone
}

// change is when a repository's refs changed for the first and the last time since it was looked at.
type change struct{ first, last time.Time }

// upkept is how a repository was left.
type upkept struct {
	packs, loose int64
	until        time.Time // nothing is done before
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
	u := &upkeep{node: n, Upkeep: when, metrics: n.metrics, wake: make(chan struct{}, 1), pending: map[git.RepoPath]change{}, upkept: map[string]upkept{}}
	u.ctx, u.end = context.WithCancel(context.Background())
	return u
}

// changed takes note of a change. It never waits.
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
			u.metrics.checks.WithLabelValues("dropped").Inc()
			return
		}
		c.first = now
	}
	c.last = now
	u.pending[path] = c
	u.metrics.pending.Set(float64(len(u.pending)))
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
			u.look(path)
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

// next takes out a repository that has been quiet for long enough, the one that has waited for longest; if there is none it tells for how
// long to wait. The wait is never 0 once the node closes.
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
		u.metrics.pending.Set(float64(len(u.pending)))
	}
	return path, wait
}

// look maintains a repository if that is due.
func (u *upkeep) look(path git.RepoPath) {
	outcome, err := u.check(path)
	u.metrics.checks.WithLabelValues(outcome).Inc()
	switch {
	case err == nil || u.ctx.Err() != nil || fault.Is(err, fault.NotFound):
	case fault.Is(err, fault.Exhausted): // it is maintained now; another look follows, as if its refs had changed
		u.changed(path)
	default:
		u.node.log.Warn("cannot maintain a repository", "repository", path.String(), "error", err)
	}
}

func (u *upkeep) check(path git.RepoPath) (outcome string, err error) {
	n := u.node
	h, err := n.acquire(path)
	if err != nil {
		return "failed", err
	}
	defer n.release(h)
	left := u.upkept[h.Common]
	if time.Now().Before(left.until) {
		return "paused", nil
	}
	now, err := h.Objects.Count(u.ctx)
	if err != nil {
		return "failed", err
	}
	refs := u.manyLooseRefs(h.Common)
	if now.Loose-left.loose < int64(u.Loose) && now.Packs-left.packs < int64(u.Packs) && !refs {
		return "not_due", nil
	}
	if n.pushes != nil {
		if err := n.pushes.BeforeMaintenance(u.ctx, h.Repo, path); err != nil {
			u.leave(h.Common, pack.Counts{Packs: left.packs, Loose: left.loose}, time.Now().Add(u.Pause))
			return "declined", nil
		}
	}
	m, err := n.maintainHandle(u.ctx, h, path, refs)
	if err == nil {
		u.leave(h.Common, m.After, time.Time{})
		return "due", nil
	}
	if !fault.Is(err, fault.Exhausted) {
		u.leave(h.Common, pack.Counts{}, time.Now().Add(u.Pause))
	}
	return "failed", err
}

// leave notes how a repository was left.
func (u *upkeep) leave(commonDir string, now pack.Counts, until time.Time) {
	if len(u.upkept) >= maxUpkept { // to forget one costs a maintenance too many at most
		for dir := range u.upkept {
			delete(u.upkept, dir)
			break
		}
	}
	u.upkept[commonDir] = upkept{packs: now.Packs, loose: now.Loose, until: until}
}

// manyLooseRefs tells whether packing the refs is due. It gives up where there is much else among them.
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
