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

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/proto/workerv1"
)

// lane is where a repository waits for work: to be looked at, and, if its index is behind, for a process that indexes.
// There are two of these at most: one for what was never indexed, or is indexed anew, which takes long; and one for
// changes on top of an index, which is quick, and for so long the other one is stopped. While the slow one has long
// been busy with one repository, the fast one also takes small ones that wait for it.
type lane int

const (
	laneNone lane = iota
	laneLook
	laneFast
	laneSlow
	lanes
)

// Kinds of jobs.
const (
	kindFull  = "full"
	kindDelta = "delta"
	kindAnew  = "anew" // of a repository whose index is not behind, but has become slow
)

// quiet is for how long a repository has not changed before its index is made anew.
const quiet = 30 * time.Second

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// waiting is a lane's queue, by the times when repositories are due. An entry counts if its repository still is due
// then.
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

// enqueue has a repository wait in a lane until a time, or until it is due there already, if that is sooner. It waits
// in one of the lanes that index; whether it is to be looked at has nothing to do with that: what changes while it is
// looked at or indexed is looked at afterwards. The caller holds e.mu.
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
	case e.wake[l] <- struct{}{}:
	default:
	}
}

// work does what waits in a lane, one repository after the other.
func (e *Engine) work(l lane) {
	defer e.retire(l)
	for e.ctx.Err() == nil {
		r, wait := e.next(l)
		if r == nil && l == laneFast {
			r, wait = e.nextSmall(), min(wait, helpAfter)
		}
		if r == nil {
			idle := e.spare[l] != nil && wait >= spareTime
			if idle {
				wait = spareTime
			}
			t := time.NewTimer(wait)
			select {
			case <-e.ctx.Done():
			case <-e.wake[l]:
			case <-t.C:
				if idle {
					e.retire(l)
				}
			}
			t.Stop()
			continue
		}
		if l == laneLook {
			e.look(r)
		} else {
			e.index(r, l)
		}
	}
}

// next takes the repository that is due out of a lane; nil: none is for so long.
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
		first.repository.looking = first.repository.looking || l == laneLook
		return first.repository, 0
	}
	return nil, time.Hour
}

const (
	// helpAfter is for how long one repository is indexed before the fast lane takes others, of up to smallFiles files,
	// that wait behind it.
	helpAfter  = 5 * time.Second
	smallFiles = 2000
	// stopFirst is how long the process in the slow lane may be stopped, besides stopShare times as long as it ran.
	stopFirst = 10 * time.Second
	stopShare = 4
)

// nextSmall takes a repository out of the slow lane that was not indexed yet and may be small, if that lane has long
// been busy; nil: there is none.
func (e *Engine) nextSmall() *repository {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	if e.slow == nil || now.Sub(e.slow.began) < helpAfter {
		return nil
	}
	for _, w := range e.queues[laneSlow] {
		r := w.repository
		if r.due[laneSlow] == w.due && !w.due.After(now) && len(r.indexed) == 0 && !r.big && r.failed == 0 {
			r.due[laneSlow] = time.Time{}
			return r
		}
	}
	return nil
}

// slowChild is the process in the slow lane. Guarded by Engine.mu.
type slowChild struct {
	*child
	began   time.Time
	since   time.Time     // it is stopped; zero: it is not
	stopped time.Duration // before that
}

// stop stops the process, but for not much more than so much of its time: pushes all day long must not keep it from its
// end.
func (s *slowChild) stop() {
	now := time.Now()
	if ran := now.Sub(s.began) - s.stopped; s.since.IsZero() && s.stopped <= stopFirst+stopShare*ran {
		s.since = now
		s.signal(unix.SIGSTOP)
	}
}

func (s *slowChild) goOn() {
	if !s.since.IsZero() {
		s.stopped += time.Since(s.since)
		s.since = time.Time{}
		s.signal(unix.SIGCONT)
	}
}

// begin notes what works in a lane. While the fast one works, the process in the slow one is stopped.
func (e *Engine) begin(l lane, c *child) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch l {
	case laneFast:
		e.fast = true
	case laneSlow:
		e.slow = &slowChild{child: c, began: time.Now()}
	}
	if e.fast && e.slow != nil {
		e.slow.stop()
	}
}

func (e *Engine) finish(l lane) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch l {
	case laneFast:
		e.fast = false
		if e.slow != nil {
			e.slow.goOn()
		}
	case laneSlow:
		e.slow.goOn() // it may have been stopped when it had just reported, and there may be more for it to do
		e.slow = nil
	}
}

// lookEvery is how often a repository is looked at because its refs have changed, at most.
const lookEvery = 100 * time.Millisecond

// event takes what the source says of a repository.
func (e *Engine) event(path git.RepoPath, _ git.Version, gone bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.repos[path]
	if r == nil && !gone {
		r = &repository{path: path, lag: -1}
		e.repos[path] = r
	}
	if r != nil {
		now := time.Now()
		if soonest := r.seen.Add(lookEvery); soonest.After(now) {
			now = soonest
		}
		e.enqueue(r, laneLook, now)
	}
}

// Touch says that a repository's refs have changed: until it was looked at, searches that find something in it ask
// where its branches are.
func (e *Engine) Touch(path git.RepoPath) {
	short := strings.TrimSuffix(path.String(), ".git")
	for _, name := range []string{short, short + ".git", short + "/.git"} {
		if path, err := git.ParseRepoPath(name); err == nil {
			e.mu.Lock()
			if r := e.repos[path]; r != nil {
				e.enqueue(r, laneLook, time.Now())
			}
			e.mu.Unlock()
		}
	}
}

// look finds out where a repository's branches are, and has it indexed if its index is behind.
func (e *Engine) look(r *repository) {
	defer func() {
		e.mu.Lock()
		r.looking = false
		e.mu.Unlock()
	}()
	heads, version, err := e.heads(e.ctx, r.path)
	if e.ctx.Err() != nil {
		return
	}
	if fault.Is(err, fault.NotFound) {
		e.forget(r)
		return
	}
	e.mu.Lock()
	r.seen = time.Now()
	if err != nil {
		r.err = e.reason(err)
		level := slog.LevelDebug
		if r.unseen == 0 { // of many repositories that are away one line each is enough
			level = slog.LevelWarn
		}
		wait := backoff(&r.unseen)
		e.enqueue(r, laneLook, r.seen.Add(wait))
		e.mu.Unlock()
		e.log.Log(e.ctx, level, "a repository to index could not be looked at", "repository", r.path.String(), "error", err,
			"in", wait.String())
		return
	}
	if r.unseen > 0 {
		r.unseen, r.err = 0, ""
	}
	if r.incarnation != version.Incarnation && r.id != 0 {
		e.anew(r)
	}
	r.incarnation, r.version, r.current, r.looked = version.Incarnation, version, heads, true
	e.judge(r)
	var from string
	if len(r.indexed) > 0 && len(heads) > 0 && r.indexed[0].Commit != heads[0].Commit.String() {
		from = r.indexed[0].Commit
	}
	e.mu.Unlock()
	if from != "" {
		e.countLag(r, from, heads[0].Commit)
	}
}

// maxLag is up to where commits are counted by which an index is behind.
const maxLag = 10_000

// countLag counts by how many commits an index is behind.
func (e *Engine) countLag(r *repository, from string, to git.ObjectID) {
	old, err := git.ParseObjectID(from)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(e.ctx, 10*time.Second)
	defer cancel()
	n, err := e.o.Source.Behind(ctx, r.path, old, to, maxLag)
	if err != nil {
		return // the commit may be gone; the lag stays unknown
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(r.indexed) > 0 && len(r.current) > 0 && r.indexed[0].Commit == from && r.current[0].Commit == to {
		r.lag = n
	}
}

// heads finds the branches to index, the one that HEAD names first.
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

// branchName is how a ref is called in the index.
func branchName(ref string) string { return strings.TrimPrefix(ref, "refs/heads/") }

func branches(heads []Head) []*workerv1.Branch {
	list := make([]*workerv1.Branch, len(heads))
	for i, h := range heads {
		list[i] = &workerv1.Branch{Name: branchName(h.Name), Commit: h.Commit.String()}
	}
	return list
}

// judge decides what a repository waits for. The caller holds e.mu.
func (e *Engine) judge(r *repository) {
	want, now := branches(r.current), time.Now()
	e.stale = true
	if sameBranches(want, r.indexed) {
		r.changed, r.lag, r.err, r.due[laneFast] = time.Time{}, 0, "", time.Time{}
		if _, busy := e.jobs[r]; r.rebuild && !busy {
			e.enqueue(r, laneSlow, later(now, r.again))
		} else if r.deltas > 0 && r.deltas >= e.o.Deltas/2 {
			e.enqueue(r, laneSlow, now.Add(quiet))
		}
		return
	}
	if r.changed.IsZero() {
		r.changed = now
	}
	r.lag = -1
	if j, busy := e.jobs[r]; busy {
		if j.kind == kindAnew && r.deltas < 2*e.o.Deltas && !j.finishing.Load() {
			j.cancel() // what is new can be had sooner
		}
		return // judged again at its end
	}
	due := later(r.changed.Add(e.o.Debounce), r.again)
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

// deltaFits tells whether what is new can be put on top of the shards there are: zoekt can for the same branches, and
// we know what has changed if there is one.
func (e *Engine) deltaFits(r *repository, want []*workerv1.Branch) bool {
	return len(want) == 1 && len(r.indexed) == 1 && want[0].Name == r.indexed[0].Name && r.shards > 0 && !r.rebuild &&
		r.deltas < 2*e.o.Deltas
}

// anew gives a repository that another one has taken the place of a new number, later. The caller holds e.mu.
func (e *Engine) anew(r *repository) {
	e.stale = true
	delete(e.byID, r.id)
	if err := e.catalogue.remove(r.id); err != nil {
		e.log.Warn("cannot write the catalogue of the search index", "error", err)
	}
	if j, busy := e.jobs[r]; busy {
		j.cancel()
	}
	r.id, r.indexed, r.shards, r.deltas, r.looked, r.current = 0, nil, 0, 0, false, nil
	if err := e.dropShards(r.path); err != nil {
		e.log.Warn("cannot remove a repository from the search index", "repository", r.path.String(), "error", err)
	}
}

// forget removes a repository that is gone. The watch tells if it comes back, and may have done so since it was looked
// at.
func (e *Engine) forget(r *repository) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !r.due[laneLook].IsZero() {
		return
	}
	if r.id != 0 {
		e.anew(r)
	} else if err := e.dropShards(r.path); err != nil {
		e.log.Warn("cannot remove a repository from the search index", "repository", r.path.String(), "error", err)
	}
	r.due, e.stale = [lanes]time.Time{}, true
	delete(e.repos, r.path)
}

// backoff is how long to wait after so many failures in a row, and counts one more.
func backoff(failures *int) time.Duration {
	wait := min(retryFailed<<min(*failures, 16), maxRetry)
	*failures++
	return wait
}

// reason is what readers of a repository may see of a failure: nothing of the server's directories.
func (e *Engine) reason(err error) string {
	text := err.Error()
	if _, ok := errors.AsType[*fault.Error](err); ok {
		text = fault.Message(err)
	}
	return strings.NewReplacer(e.shards()+"/", "", e.o.Dir+"/", "").Replace(text)
}

// failed has a repository that could not be indexed wait until that is tried again: at least for as long as it kept
// others waiting.
func (e *Engine) failed(r *repository, err error, took time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r.err = e.reason(err)
	wait := max(backoff(&r.failed), took.Round(time.Second))
	r.again = time.Now().Add(wait)
	e.enqueue(r, laneSlow, r.again)
	e.log.Warn("a repository could not be indexed", "repository", r.path.String(), "error", err, "in", wait.String())
}
