package storage

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// Maintenance configures when a node maintains a repository automatically. After changes of its refs the node counts
// the files that are new since the last maintenance. One count that is reached is enough. Zero values mean the
// defaults.
type Maintenance struct {
	Loose     int // new loose objects. Default 1,000.
	Packs     int // new packs. Default 20.
	LooseRefs int // Default 500.
	// Quiet is the time without changes of refs before a check. A check waits at most 10 times that, and after many
	// changes a fifth of it, or as long as the last maintenance took. Default 10 s.
	Quiet time.Duration
	// Unreachable is the age from which unreachable objects are removed, at most once in collectInterval. 0: never.
	Unreachable time.Duration
	Pause       time.Duration // time until the next attempt after a failure. Default one hour.
}

const (
	maxPending    = 10_000 // repositories to check; further ones wait for their next push
	maxMaintained = 10_000 // repositories whose state after maintenance is kept
	looseRefWalk  = 100    // directory entries that are read for each loose ref to find
)

// maintainer checks repositories after changes of their refs, and maintains those that need it, one after the other.
type maintainer struct {
	node *Node
	Maintenance
	metrics *metrics

	ctx     context.Context
	end     context.CancelFunc
	running sync.WaitGroup
	wake    chan struct{} // has a token while pending has new repositories

	mu      sync.Mutex
	started bool
	pending map[git.RepoPath]pendingCheck

	maintained map[string]maintainedState // by common directory; only for run
	took       time.Duration              // of the last maintenance; only for run
}

// pendingCheck has the times of the first and the last change of a repository's refs since the last check, and their
// number.
type pendingCheck struct {
	first, last time.Time
	n           int
}

// manyChanges is how many times more changes than Maintenance.Packs make a check urgent: Git gets slower with each
// pack.
const manyChanges = 5

// maintainedState is the state of a repository after maintenance.
type maintainedState struct {
	packs, loose int64
	pausedUntil  time.Time
}

func newMaintainer(n *Node, when Maintenance) *maintainer {
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
	m := &maintainer{node: n, Maintenance: when, metrics: n.metrics, wake: make(chan struct{}, 1),
		pending: map[git.RepoPath]pendingCheck{}, maintained: map[string]maintainedState{}}
	m.ctx, m.end = context.WithCancel(context.Background())
	return m
}

// changed schedules a check. It never blocks.
func (m *maintainer) changed(path git.RepoPath) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx.Err() != nil {
		return
	}
	c, ok := m.pending[path]
	if !ok {
		if len(m.pending) == maxPending {
			m.metrics.checks.WithLabelValues("dropped").Inc()
			return
		}
		c.first = now
	}
	c.last = now
	c.n++
	m.pending[path] = c
	if !m.started {
		m.started = true
		m.running.Go(m.run)
	}
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *maintainer) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		path, wait := m.next(time.Now())
		if wait == 0 {
			m.maintainIfDue(path)
			continue
		}
		timer.Reset(wait)
		select {
		case <-m.ctx.Done():
			return
		case <-m.wake:
		case <-timer.C:
		}
	}
}

// next removes and returns the repository that is due and has waited longest. If there is no such repository, or the
// node closes, it returns how long to wait, which is not zero.
func (m *maintainer) next(now time.Time) (path git.RepoPath, wait time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx.Err() != nil {
		return path, time.Hour
	}
	wait = time.Hour
	var oldest time.Time
	for p, c := range m.pending {
		due := min(c.last.Add(m.Quiet).Sub(now), c.first.Add(10*m.Quiet).Sub(now))
		if c.n >= manyChanges*m.Packs {
			due = min(due, c.first.Add(max(m.Quiet/5, m.took)).Sub(now))
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
		delete(m.pending, path)
	}
	return path, wait
}

// maintainIfDue maintains a repository if it needs that.
func (m *maintainer) maintainIfDue(path git.RepoPath) {
	outcome, err := m.check(path)
	if err == nil && outcome != "paused" && outcome != "declined" && m.Unreachable > 0 {
		err = m.collect(path)
	}
	m.metrics.checks.WithLabelValues(outcome).Inc()
	switch {
	case err == nil || m.ctx.Err() != nil || fault.Is(err, fault.NotFound):
	case fault.Is(err, fault.Exhausted): // it is being maintained: check again later
		m.changed(path)
	default:
		m.node.log.Warn("cannot maintain a repository", "repository", path.String(), "error", err)
	}
}

// check maintains a repository if it needs that, and returns the outcome for the metric.
func (m *maintainer) check(path git.RepoPath) (outcome string, err error) {
	n := m.node
	h, err := n.acquireAny(m.ctx, path)
	if err != nil {
		return "failed", err
	}
	defer n.release(h)
	last := m.maintained[h.Common]
	if time.Now().Before(last.pausedUntil) {
		return "paused", nil
	}
	now, err := h.place.Counts(m.ctx)
	if err != nil {
		return "failed", err
	}
	refs := m.manyLooseRefs(h.Common)
	if now.Loose-last.loose < int64(m.Loose) && now.Packs-last.packs < int64(m.Packs) && !refs {
		return "not_due", nil
	}
	if n.pushes != nil {
		if err := n.pushes.BeforeMaintenance(m.ctx, h.Repo, path); err != nil {
			m.remember(h.Common, pack.Counts{Packs: last.packs, Loose: last.loose}, time.Now().Add(m.Pause))
			return "declined", nil
		}
	}
	start := time.Now()
	result, err := n.maintainHandle(m.ctx, h, path, refs)
	m.took = time.Since(start)
	if err == nil {
		m.remember(h.Common, result.After, time.Time{})
		return "due", nil
	}
	if !fault.Is(err, fault.Exhausted) {
		m.remember(h.Common, pack.Counts{}, time.Now().Add(m.Pause))
	}
	return "failed", err
}

const (
	// collectInterval is the minimum time between two collections of a repository.
	collectInterval = 24 * time.Hour
	// collectedFile is a file in a repository, and in a network of forks, whose time is that of the last collection.
	collectedFile = "packhorse-collected"
)

// collect removes unreachable objects of a repository if that is due. A repository in which no object must be removed
// is tried again after the interval.
func (m *maintainer) collect(path git.RepoPath) error {
	h, err := m.node.acquireAny(m.ctx, path)
	if err != nil {
		return err
	}
	defer m.node.release(h)
	mark := filepath.Join(h.Common, collectedFile)
	if !isCollectionDue(mark) {
		return nil
	}
	if n := m.node; n.pushes != nil && n.pushes.BeforeMaintenance(m.ctx, h.Repo, path) != nil {
		return nil // a hook keeps the objects
	}
	err = markCollected(mark)
	o := places.CollectOptions{OlderThan: m.Unreachable}
	if network := h.Network(); network != "" && !h.IsCopy() { // any member collects it
		mark = filepath.Join(filepath.Dir(network), collectedFile)
		if o.OwnOnly = !isCollectionDue(mark); !o.OwnOnly && err == nil {
			err = markCollected(mark)
		}
	}
	if err != nil {
		return err
	}
	_, err = m.node.collectHandle(m.ctx, h, path, o)
	if fault.Is(err, fault.Denied) || fault.Is(err, fault.Unavailable) {
		m.node.log.Info("unreachable objects of a repository are kept", "repository", path.String(), "reason", err)
		return nil
	}
	return err
}

// isCollectionDue reports whether the last collection is long ago.
func isCollectionDue(mark string) bool {
	info, err := os.Stat(mark)
	return err != nil || time.Since(info.ModTime()) >= collectInterval
}

func markCollected(mark string) error {
	err := os.WriteFile(mark, nil, 0o666)
	if err == nil {
		now := time.Now()
		err = os.Chtimes(mark, now, now) // it may have existed
	}
	return places.WriteError(err)
}

// remember keeps the state of a repository after maintenance.
func (m *maintainer) remember(commonDir string, now pack.Counts, until time.Time) {
	if len(m.maintained) >= maxMaintained { // a forgotten one is maintained once too often at most
		for dir := range m.maintained {
			delete(m.maintained, dir)
			break
		}
	}
	m.maintained[commonDir] = maintainedState{packs: now.Packs, loose: now.Loose, pausedUntil: until}
}

// manyLooseRefs reports whether the refs need packing. It gives up if it finds too many other files.
func (m *maintainer) manyLooseRefs(commonDir string) bool {
	seen, found := 0, 0
	_ = filepath.WalkDir(filepath.Join(commonDir, "refs"), func(path string, e fs.DirEntry, err error) error {
		if seen++; seen > looseRefWalk*m.LooseRefs || found >= m.LooseRefs || m.ctx.Err() != nil {
			return fs.SkipAll
		}
		if err == nil && e.Type().IsRegular() && !strings.HasSuffix(path, ".lock") {
			found++
		}
		return nil
	})
	return found >= m.LooseRefs
}

func (m *maintainer) close() {
	m.mu.Lock()
	m.end()
	m.mu.Unlock()
	m.running.Wait()
}

// Maintains reports whether the node maintains repositories automatically.
func (n *Node) Maintains() bool { return n.maintainer != nil }
