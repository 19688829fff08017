package search

import (
	"container/heap"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/proto/workerv1"
)

// lane is a queue of repositories: for checks, or for indexing if the index is behind. At most two lanes index. The
// slow one makes new indexes and rebuilds, which takes long. The fast one adds changes to an index. While the slow one
// has long been busy with one repository, the fast one also takes small ones that wait for it.
type lane int

const (
	laneNone lane = iota
	laneCheck
	laneFast
	laneSlow
	lanes
)

// Kinds of jobs.
const (
	kindFull    = "full"
	kindDelta   = "delta"
	kindCompact = "compact" // rebuild of a current index that has become slow
)

// quiet is the time without changes before an index is rebuilt.
const quiet = 30 * time.Second

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// waiting is the queue of a lane, by due time. An entry is valid if its repository is still due at that time.
type waiting []waiter

type waiter struct {
	*repository
	due time.Time
}

func (w waiting) Len() int           { return len(w) }
func (w waiting) Less(i, j int) bool { return w[i].due.Before(w[j].due) }
func (w waiting) Swap(i, j int)      { w[i], w[j] = w[j], w[i] }
func (w *waiting) Push(x any)        { *w = append(*w, x.(waiter)) }

func (w *waiting) Pop() any {
	last := len(*w) - 1
	x := (*w)[last]
	(*w)[last] = waiter{}
	*w = (*w)[:last]
	return x
}

// enqueue puts a repository into a lane until a time, or until an earlier one at which it is already due. A repository
// waits in one of the indexing lanes only. Checks are independent: a change during a check or a job is checked
// afterwards. The caller holds e.mu.
func (e *Engine) enqueue(r *repository, l lane, due time.Time) {
	if old := r.due[l]; !old.IsZero() && !old.After(due) {
		return
	}
	switch l {
	case laneFast:
		r.due[laneSlow] = time.Time{}
	case laneSlow:
		r.due[laneFast] = time.Time{}
	}
	r.due[l] = due
	heap.Push(&e.queues[l], waiter{r, due})
	e.wakeUp(l)
}

func (e *Engine) wakeUp(l lane) {
	select {
	case e.wakeSignals[l] <- struct{}{}:
	default:
	}
}

// work processes a lane, one repository after the other.
func (e *Engine) work(l lane) {
	defer e.endSpare(l)
	for e.ctx.Err() == nil {
		r, wait := e.next(l)
		if r == nil && l == laneFast {
			r, wait = e.nextSmall(), min(wait, helpAfter)
		}
		if r == nil {
			idle := e.spares[l] != nil && wait >= spareTime
			if idle {
				wait = spareTime
			}
			t := time.NewTimer(wait)
			select {
			case <-e.ctx.Done():
			case <-e.wakeSignals[l]:
			case <-t.C:
				if idle {
					e.endSpare(l)
				}
			}
			t.Stop()
			continue
		}
		if l == laneCheck {
			e.check(r)
		} else {
			e.index(r, l)
		}
	}
}

// next removes and returns the due repository of a lane, or nil with the time until one is due.
func (e *Engine) next(l lane) (*repository, time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := &e.queues[l]
	for q.Len() > 0 {
		first := (*q)[0]
		if first.repository.due[l] != first.due {
			heap.Pop(q)
			continue
		}
		if wait := time.Until(first.due); wait > 0 {
			return nil, wait
		}
		heap.Pop(q)
		first.repository.due[l] = time.Time{}
		first.repository.inCheck = first.repository.inCheck || l == laneCheck
		return first.repository, 0
	}
	return nil, time.Hour
}

const (
	// helpAfter is the time that one repository is indexed before the fast lane takes others of up to smallFiles files
	// that wait behind it.
	helpAfter  = 5 * time.Second
	smallFiles = 2000
)

// nextSmall takes a repository without an index that may be small out of the slow lane, if that lane has long been
// busy. It returns nil if there is none.
func (e *Engine) nextSmall() *repository {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	if e.slowStart.IsZero() || now.Sub(e.slowStart) < helpAfter {
		return nil
	}
	for _, w := range e.queues[laneSlow] {
		r := w.repository
		if r.due[laneSlow] == w.due && !w.due.After(now) && len(r.indexed) == 0 && !r.isBig && r.indexFailures == 0 {
			r.due[laneSlow] = time.Time{}
			return r
		}
	}
	return nil
}

// checkInterval is the minimum interval between checks of a repository because its refs changed.
const checkInterval = 100 * time.Millisecond

// event processes an event of the source.
func (e *Engine) event(path git.RepoPath, _ git.Version, gone bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if gone && e.repos[path] == nil {
		return
	}
	r := e.repository(path)
	e.enqueue(r, laneCheck, later(time.Now(), r.lastCheck.Add(checkInterval)))
}

// repository returns the record of a repository, which may be new. The caller holds e.mu.
func (e *Engine) repository(path git.RepoPath) *repository {
	r := e.repos[path]
	if r == nil {
		r = &repository{path: path, lag: -1}
		e.repos[path] = r
	}
	return r
}

// Touch reports that a repository's refs have changed. Until it is checked, searches with results in it determine its
// branches themselves.
func (e *Engine) Touch(path git.RepoPath) {
	short := strings.TrimSuffix(path.String(), ".git")
	for _, name := range []string{short, short + ".git", short + "/.git"} {
		if path, err := git.ParseRepoPath(name); err == nil {
			e.mu.Lock()
			if r := e.repos[path]; r != nil {
				e.enqueue(r, laneCheck, time.Now())
			}
			e.mu.Unlock()
		}
	}
}

// check determines the branches of a repository, and schedules indexing if its index is behind.
func (e *Engine) check(r *repository) {
	defer func() {
		e.mu.Lock()
		r.inCheck = false
		e.mu.Unlock()
	}()
	heads, version, err := e.heads(e.ctx, r.path)
	if e.ctx.Err() != nil {
		return
	}
	if fault.Is(err, fault.NotFound) {
		e.remove(r)
		return
	}
	e.mu.Lock()
	r.lastCheck = time.Now()
	if err != nil {
		r.err = e.reason(err)
		level := slog.LevelDebug
		if r.checkFailures++; r.checkFailures == 1 { // one line for each unreachable repository is enough
			level = slog.LevelWarn
		}
		wait := failedAgain.Pause(r.checkFailures)
		e.enqueue(r, laneCheck, r.lastCheck.Add(wait))
		e.mu.Unlock()
		e.log.Log(e.ctx, level, "cannot read the branches of a repository to index", "repository", r.path.String(), "error",
			err,
			"in", wait.String())
		return
	}
	if r.checkFailures > 0 {
		r.checkFailures, r.err = 0, ""
	}
	if r.incarnation != version.Incarnation && r.id != 0 {
		e.renumber(r)
	}
	r.incarnation, r.version, r.current, r.hasCurrent = version.Incarnation, version, heads, true
	e.schedule(r)
	var from string
	if len(r.indexed) > 0 && len(heads) > 0 && r.indexed[0].Commit != heads[0].Commit.String() {
		from = r.indexed[0].Commit
	}
	e.mu.Unlock()
	if from != "" {
		e.countLag(r, from, heads[0].Commit)
	}
}

// maxLag is the maximum number of counted commits by which an index is behind.
const maxLag = 10_000

// countLag counts the commits by which an index is behind.
func (e *Engine) countLag(r *repository, from string, to git.ObjectID) {
	old, err := git.ParseObjectID(from)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(e.ctx, 10*time.Second)
	defer cancel()
	n, err := e.o.Source.Behind(ctx, r.path, old, to, maxLag)
	if err != nil {
		return // the commit may be removed; the lag stays unknown
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(r.indexed) > 0 && len(r.current) > 0 && r.indexed[0].Commit == from && r.current[0].Commit == to {
		r.lag = n
	}
}

// heads returns the branches to index, HEAD's branch first.
func (e *Engine) heads(ctx context.Context, path git.RepoPath) ([]Head, git.Version, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	names := append([]string{string(git.HEAD)}, e.o.Branches...)
	all, version, err := e.o.Source.Heads(ctx, path, names)
	if err != nil {
		return nil, version, err
	}
	var heads []Head
	for _, h := range all {
		if h.Err != nil {
			if !fault.Is(h.Err, fault.NotFound) {
				return nil, version, h.Err
			}
			continue
		}
		if !slices.ContainsFunc(heads, func(o Head) bool { return o.Name == h.Name }) && len(heads) < maxBranches {
			heads = append(heads, h)
		}
	}
	return heads, version, nil
}

// branchName returns the name of a ref in the index.
func branchName(ref string) string { return strings.TrimPrefix(ref, "refs/heads/") }

func branches(heads []Head) []*workerv1.Branch {
	list := make([]*workerv1.Branch, len(heads))
	for i, h := range heads {
		list[i] = &workerv1.Branch{Name: branchName(h.Name), Commit: h.Commit.String()}
	}
	return list
}

// schedule puts a repository into the right lane. The caller holds e.mu.
func (e *Engine) schedule(r *repository) {
	want, now := branches(r.current), time.Now()
	e.recount = true
	if sameBranches(want, r.indexed) {
		r.firstChange, r.lag, r.err, r.due[laneFast] = time.Time{}, 0, "", time.Time{}
		if _, busy := e.jobs[r]; r.needsRebuild && !busy {
			e.enqueue(r, laneSlow, later(now, r.nextAttempt))
		} else if r.deltas > 0 && r.deltas >= e.o.Deltas/2 {
			e.enqueue(r, laneSlow, now.Add(quiet))
		}
		return
	}
	if r.firstChange.IsZero() {
		r.firstChange = now
	}
	r.lag = -1
	if j, busy := e.jobs[r]; busy {
		if j.kind == kindCompact && r.deltas < 2*e.o.Deltas && !j.allSent.Load() {
			j.cancel() // the new state can be indexed sooner
		}
		return // judged again at its end
	}
	if r.tooLarge != nil && sameBranches(want, r.tooLarge) {
		return // until they change
	}
	due := later(r.firstChange.Add(e.o.Debounce), r.nextAttempt)
	if e.deltaFits(r, want) {
		e.enqueue(r, laneFast, due)
	} else {
		e.enqueue(r, laneSlow, due)
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// deltaFits reports whether the change can be added to the existing shards. zoekt supports this for unchanged branches,
// and the differences are known for a single one.
func (e *Engine) deltaFits(r *repository, want []*workerv1.Branch) bool {
	return len(want) == 1 && len(r.indexed) == 1 && want[0].Name == r.indexed[0].Name && r.shards > 0 && !r.needsRebuild &&
		r.deltas < 2*e.o.Deltas
}

// renumber assigns a new number to a repository that replaced another one. The caller holds e.mu.
func (e *Engine) renumber(r *repository) {
	delete(e.byID, r.id)
	if err := e.catalogue.remove(r.id); err != nil {
		e.log.Warn("cannot write the catalogue of the search index", "error", err)
	}
	if j, busy := e.jobs[r]; busy {
		j.cancel()
	}
	r.id, r.hasCurrent, r.current = 0, false, nil
	e.dropIndex(r)
}

// remove removes a repository that no longer exists. The watch reports when it comes back, which may have happened
// since its last check.
func (e *Engine) remove(r *repository) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !r.due[laneCheck].IsZero() {
		return
	}
	if r.id != 0 {
		e.renumber(r)
	} else {
		e.dropIndex(r)
	}
	r.due = [lanes]time.Time{}
	delete(e.repos, r.path)
}

// reason returns the part of an error that readers of a repository may see, without directories of the server.
func (e *Engine) reason(err error) string {
	text := err.Error()
	if _, ok := errors.AsType[*fault.Error](err); ok {
		text = fault.Message(err)
	}
	return strings.NewReplacer(e.shards()+"/", "", e.o.Dir+"/", "").Replace(text)
}

// scheduleRetry schedules a repository that could not be indexed for a later attempt: at least after the time for which
// it kept others waiting.
func (e *Engine) scheduleRetry(r *repository, err error, took time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r.err = e.reason(err)
	r.indexFailures++
	wait := max(failedAgain.Pause(r.indexFailures), took.Round(time.Second))
	r.nextAttempt = time.Now().Add(wait)
	if r.tooLarge != nil {
		e.log.Warn("a repository is too large for the search index", "repository", r.path.String(), "error", err)
		e.schedule(r)
		return
	}
	e.enqueue(r, laneSlow, r.nextAttempt)
	e.log.Warn("cannot index a repository", "repository", r.path.String(), "error", err, "in", wait.String())
}
