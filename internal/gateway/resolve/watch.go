package resolve

import (
	"context"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

const (
	// gather is the time in which repositories are collected before they are watched together.
	gather = 20 * time.Millisecond
	// sweepEvery is the interval at which unused watched repositories make room for others.
	sweepEvery = time.Minute
)

// watchAgain has the pauses before the events of a group that broke off are requested again.
var watchAgain = retry.Policy{First: 500 * time.Millisecond, Max: 30 * time.Second}

// group is a set of repositories whose events arrive, and break off, together. It is guarded by the lock of the Tiers.
//
// A Watch names its repositories at the start, so there are several. A new one takes over those of smaller ones. That
// keeps their number small, and each repository changes its stream only logarithmically often.
type group struct {
	streams  []*stream
	pending  []*repository
	failures int   // since an event arrived
	after    int64 // earliest time of the next attempt
	full     bool  // the node refused further watches last time
}

// stream is one call of Watch.
type stream struct {
	group  *group
	repos  map[git.RepoPath]*repository // named repositories for which it is the present or future source
	cancel context.CancelFunc
}

// watchSoon queues a repository to be watched, if there is room. t.mu is held.
func (t *Tiers) watchSoon(r *repository) {
	if r.queued || r.joining != nil || r.stream != nil || t.ctx.Err() != nil {
		return
	}
	if t.watched >= t.o.Watched {
		t.crowded = true
		return
	}
	t.watched++
	t.queue(r)
}

// queue adds a watched repository to the list of its group. t.mu is held.
func (t *Tiers) queue(r *repository) {
	name := t.o.Group(r.path)
	g := t.groups[name]
	if g == nil {
		g = &group{}
		t.groups[name] = g
	}
	r.queued = true
	g.pending = append(g.pending, r)
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// watchAll starts streams until the Tiers are closed.
func (t *Tiers) watchAll() {
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	timer := time.NewTimer(forever)
	defer timer.Stop()
	at := int64(forever) // when it fires; later requests do not delay it
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-sweep.C:
			t.sweep()
		case <-t.wake:
			if soon := t.now() + int64(gather); soon < at {
				at = soon
				timer.Reset(gather)
			}
		case <-timer.C:
			at = forever
			if next := t.beginStreams(); next < forever {
				at = t.now() + next
				timer.Reset(time.Duration(next))
			}
		}
	}
}

// beginStreams starts the streams that are due, and returns the nanoseconds until the next one.
func (t *Tiers) beginStreams() (next int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next = forever
	now := t.now()
	for name, g := range t.groups {
		if len(g.pending) == 0 && len(g.streams) == 0 {
			delete(t.groups, name)
		}
		if len(g.pending) == 0 {
			continue
		}
		if g.after > now {
			next = min(next, g.after-now)
			continue
		}
		t.beginStream(g)
	}
	return next
}

// beginStream starts a stream for pending repositories and for those of smaller streams. t.mu is held.
func (t *Tiers) beginStream(g *group) {
	if t.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(t.ctx)
	s := &stream{group: g, repos: map[git.RepoPath]*repository{}, cancel: cancel}
	for _, r := range g.pending {
		r.queued = false
		t.join(s, r)
	}
	g.pending = nil
	for i := len(g.streams) - 1; i >= 0 && len(g.streams[i].repos) <= len(s.repos); i-- {
		for _, r := range g.streams[i].repos {
			t.join(s, r)
		}
	}
	g.streams = append(g.streams, s)
	from := make([]node.Known, 0, len(s.repos))
	for path, r := range s.repos {
		known := node.Known{Repository: path}
		if r.state != nil {
			known.Version = r.state.version
		}
		from = append(from, known)
	}
	t.running.Go(func() {
		defer cancel()
		err := t.o.Node.Watch(ctx, from, func(e node.Event) error {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.deliver(s, e)
			return nil
		})
		t.mu.Lock()
		defer t.mu.Unlock()
		t.ended(s, err)
	})
}

// join moves a repository to a stream with that stream's first event about it. Its present stream serves it until then.
// t.mu is held.
func (t *Tiers) join(s *stream, r *repository) {
	if before := r.joining; before != nil && before != r.stream {
		t.part(before, r)
	}
	r.joining = s
	s.repos[r.path] = r
}

// part removes a repository from a stream. A stream without repositories ends. t.mu is held.
func (t *Tiers) part(s *stream, r *repository) {
	delete(s.repos, r.path)
	if len(s.repos) == 0 {
		s.cancel()
	}
}

// deliver processes an event of a stream. t.mu is held.
func (t *Tiers) deliver(s *stream, e node.Event) {
	r := s.repos[e.Repository]
	if r == nil {
		return // it has another stream now
	}
	s.group.failures = 0
	if r.joining == s {
		s.group.full = false
		r.joining = nil
		if r.stream != nil {
			t.part(r.stream, r)
		}
		r.stream = s
	}
	if r.stream != s {
		return
	}
	t.hear(r, e)
	if t.o.Redis != nil && !e.Gone {
		t.o.Redis.fence(r.path, e.Version)
	}
}

// ended takes back the repositories of a stream that ended. t.mu is held.
func (t *Tiers) ended(s *stream, err error) {
	g := s.group
	for i, other := range g.streams {
		if other == s {
			g.streams = append(g.streams[:i:i], g.streams[i+1:]...)
			break
		}
	}
	if len(s.repos) == 0 || t.ctx.Err() != nil {
		return
	}
	g.failures++
	wait := max(watchAgain.Pause(g.failures), min(fault.RetryAfter(err), watchAgain.Max))
	g.after = t.now() + int64(wait)
	full := fault.Is(err, fault.Exhausted)
	switch {
	case full && g.full: // already logged
	case full:
		t.o.Log.Warn("a node refuses further watches", "repositories", len(s.repos), "error", err, "retry", wait)
	default:
		t.o.Log.Warn("stream of ref events ended; requesting it again", "repositories", len(s.repos),
			"error", err, "retry", wait)
	}
	g.full = full
	for _, r := range s.repos {
		if r.stream == s {
			t.unwatched(r)
		}
		if r.joining == s {
			r.joining = nil
		}
		if r.stream == nil && r.joining == nil && !r.queued {
			t.queue(r)
		}
	}
	clear(s.repos)
}

// sweep drops watched repositories that were not used since the last sweep, if others could not be watched.
func (t *Tiers) sweep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	crowded := t.crowded
	t.crowded = false
	for _, r := range t.repos {
		idle := r.state == nil || !r.state.used.Swap(false)
		if r.queued || r.flights > 0 || r.stream == nil && r.joining == nil || r.entries > 0 && !(idle && crowded) {
			continue
		}
		for _, s := range []*stream{r.stream, r.joining} {
			if s != nil && s.repos[r.path] == r {
				t.part(s, r)
			}
		}
		t.unwatched(r)
		r.joining = nil
		t.watched--
		t.release(r)
	}
}

// Changed reports a change of a repository's refs before its events do. The next question goes to the node.
func (t *Tiers) Changed(path git.RepoPath) {
	short := strings.TrimSuffix(strings.TrimSuffix(path.String(), ".git"), "/")
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range []string{short, short + ".git", short + "/.git"} {
		if path, err := git.ParseRepoPath(name); err == nil && t.repos[path] != nil {
			t.end(t.repos[path])
		}
	}
}
