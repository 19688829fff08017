package storage

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// WatchFrom names a repository to watch, and what the caller knows of it already; nil: nothing.
type WatchFrom struct {
	Path  git.RepoPath
	Known *git.Version
	// Patient is who can wait for what others do in the repository's directory: where nobody else watches it, it is looked at less often the more such
	// repositories there are. Of what the node does itself everybody is told at once.
	Patient bool
}

// Event is what became of a watched repository. Events are shared: nobody changes one.
type Event struct {
	Path    git.RepoPath
	Version git.Version // after it
	Reset   bool        // what happened cannot be told: forget what was known before
	Gone    bool        // it is not there; it is watched for its return
	Changes []refs.Change
}

const (
	// MaxWatched is how many repositories one Watch may name.
	MaxWatched = 10_000
	// linger is for how long a repository is watched after the last one who did has gone: to tell those who come back what they missed.
	linger = time.Minute
	// maxHistory bounds the events that are kept of each repository for them, and maxChanges the changes in these, and in one event: a
	// greater one is a reset.
	maxHistory = 64
	maxChanges = 10_000
	// lookers is how many repositories are looked at at the same time. A look that takes longer than the interval hangs, as on a file
	// system that does not answer, and does not count; up to maxHanging of them.
	lookers    = 4
	maxHanging = 64
	// patientLooks is how many of the repositories that only patient ones watch are looked at in a round. A look at one that did not change takes 40 us of
	// CPU time: 10,000 each second would be a third of a CPU.
	patientLooks = 200
)

// hub watches repositories for all who asked for it. Each is looked at regularly, once for all of them.
//
// Locks: watched.turn before hub.mu before subscription.mu. Only the turn is held while files are read.
type hub struct {
	node     *Node
	interval time.Duration
	maxSubs  int
	maxRepos int
	metrics  *Metrics

	ctx     context.Context // ends when the node is closed
	end     context.CancelFunc
	running sync.WaitGroup
	hanging atomic.Int64 // looks

	mu      sync.Mutex
	started bool
	rounds  int // of looks
	made    int // repositories that were ever watched
	subs    int
	repos   map[git.RepoPath]*watched
}

// watched is one repository as it was at the last look.
type watched struct {
	path git.RepoPath
	turn chan struct{} // one token: who has it looks; it guards what follows

	handle *handle // pinned; nil: the repository is not there, or was not looked at yet
	snap   *refs.Snapshot
	known  bool  // now says something
	now    Event // its state, or that it is gone; without changes
	over   bool  // nobody watches it any more

	history []Event // the last ones, each beginning where the one before ends
	floor   uint64  // the generation before the first of history
	kept    int     // changes in history

	// Guarded by hub.mu.
	subs   []*subscription // which were told its first state
	users  int             // subscriptions that name it
	eager  int             // of them, those that are not patient
	number int             // tells those that only patient ones watch apart, for their rounds
	left   time.Time       // when the last of them left; zero: there are some
	kicked bool            // a look was asked for and has not begun
}

func newHub(n *Node, o Options) *hub {
	h := &hub{node: n, interval: o.Look, maxSubs: o.Watchers, maxRepos: o.Watched, metrics: n.metrics, repos: make(map[git.RepoPath]*watched)}
	if h.interval <= 0 {
		h.interval = time.Second
	}
	if h.maxSubs <= 0 {
		h.maxSubs = 1000
	}
	if h.maxRepos <= 0 {
		h.maxRepos = 10_000
	}
	h.ctx, h.end = context.WithCancel(context.Background())
	return h
}

// Watch tells of each change of refs in some repositories, whoever makes it, until ctx ends or send fails; that error is returned. send
// is called for one event at a time. It begins with one event for each repository that can be read: what happened since the known version,
// if that can be told, else a reset, or that it is gone. Who is too slow to take the events in gets a reset instead of those it missed.
// A repository that cannot be read for another reason than that it is gone is tried again.
//
// Errors: Invalid if too many repositories are named, or one twice; Exhausted if too many are watched; Unavailable when the node closes.
func (n *Node) Watch(ctx context.Context, from []WatchFrom, send func(Event) error) error {
	h := n.hub
	s, err := h.subscribe(from)
	if err != nil {
		return err
	}
	defer h.unsubscribe(s)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)()
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		h.each(ctx, s.repos, func(w *watched) { h.join(ctx, w, s) })
	}()
	err = s.serve(ctx, send)
	cancel()
	<-joined
	if h.ctx.Err() != nil {
		return fault.Retry(fault.Unavailable, fault.RetrySoon, "the node is shutting down")
	}
	return err
}

// Tell has f called with each repository whose refs the node itself changes, before its client learns that. It is to return at once. Only the last f is
// called.
func (n *Node) Tell(f func(git.RepoPath)) { n.told.Store(&f) }

// RefsChanged says that the node itself has changed a repository's refs, or made or deleted it: who watches learns it at once, and
// what follows a change is done in the background.
func (n *Node) RefsChanged(path git.RepoPath) {
	if told := n.told.Load(); told != nil {
		(*told)(path)
	}
	if n.warmer != nil { // first: clients are on their way
		n.warmer.changed(path)
	}
	if n.upkeep != nil {
		n.upkeep.changed(path)
	}
	h := n.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return
	}
	for _, w := range h.named(path) {
		if !w.kicked {
			w.kicked = true
			h.running.Go(func() { h.look(h.ctx, w) })
		}
	}
}

// named lists what is watched of a repository, by the names that a path may stand for. h.mu is held.
func (h *hub) named(path git.RepoPath) (found []*watched) {
	short := strings.TrimSuffix(strings.TrimSuffix(path.String(), ".git"), "/")
	for _, name := range []string{short, short + ".git", short + "/.git"} {
		path, _ := git.ParseRepoPath(name)
		if w := h.repos[path]; w != nil {
			found = append(found, w)
		}
	}
	return found
}

// tell is RefsChanged, and returns when the event is on its way to those who watch, or when ctx ends.
func (n *Node) tell(ctx context.Context, path git.RepoPath) {
	h := n.hub
	h.mu.Lock()
	found := h.named(path)
	h.mu.Unlock()
	for _, w := range found {
		h.look(ctx, w)
	}
	n.RefsChanged(path)
}

// subscribe makes a subscription and sees to it that its repositories are looked at.
func (h *hub) subscribe(from []WatchFrom) (*subscription, error) {
	if len(from) > MaxWatched {
		return nil, fault.New(fault.Invalid, "%d repositories are more than the %d that can be watched by one call", len(from), MaxWatched)
	}
	s := newSubscription(h.metrics, len(from))
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return nil, fault.Retry(fault.Unavailable, fault.RetrySoon, "the node is shutting down")
	}
	more := 0
	for _, f := range from {
		if _, twice := s.known[f.Path]; twice {
			return nil, fault.New(fault.Invalid, "%s is named twice", f.Path)
		}
		s.known[f.Path] = f.Known
		if h.repos[f.Path] == nil {
			more++
		}
	}
	if h.subs == h.maxSubs {
		return nil, fault.Retry(fault.Exhausted, fault.RetryMuchLater, "there are %d watches already", h.subs)
	}
	if h.inUse()+more > h.maxRepos {
		return nil, fault.Retry(fault.Exhausted, fault.RetryMuchLater, "%d more repositories would be more than the %d that can be watched", more, h.maxRepos)
	}
	h.subs++
	h.running.Add(1)
	h.metrics.watchers.Set(float64(h.subs))
	for _, f := range from {
		w := h.repos[f.Path]
		if w == nil {
			h.made++
			w = &watched{path: f.Path, turn: make(chan struct{}, 1), number: h.made}
			h.repos[f.Path] = w
		}
		w.users++
		if !f.Patient {
			w.eager++
			s.eager = append(s.eager, w)
		}
		w.left = time.Time{}
		s.repos = append(s.repos, w)
	}
	h.metrics.watched.Set(float64(len(h.repos)))
	if !h.started {
		h.started = true
		h.running.Go(h.run)
	}
	return s, nil
}

// inUse is how many repositories are watched by somebody: those that linger make room. h.mu is held.
func (h *hub) inUse() (n int) {
	for _, w := range h.repos {
		if w.left.IsZero() {
			n++
		}
	}
	return n
}

func (h *hub) unsubscribe(s *subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running.Done()
	h.subs--
	h.metrics.watchers.Set(float64(h.subs))
	for _, w := range s.eager {
		w.eager--
	}
	for _, w := range s.repos {
		w.subs = slices.DeleteFunc(w.subs, func(other *subscription) bool { return other == s })
		if w.users--; w.users == 0 {
			w.left = time.Now()
		}
	}
}

// run looks at every repository once in each interval, or in several where only patient ones watch it, until the node is closed.
func (h *hub) run() {
	tick := time.NewTicker(h.interval)
	defer tick.Stop()
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-tick.C:
		}
		start := time.Now()
		all, left := h.all(start)
		h.each(h.ctx, all, h.pass)
		for _, w := range left {
			h.running.Go(func() { h.let(w) }) // after a look that hangs
		}
		h.metrics.round.Observe(time.Since(start).Seconds())
	}
}

// all lists what is to be looked at, and takes out what nobody watches any more.
func (h *hub) all(now time.Time) (all, left []*watched) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rounds++
	patient := 0
	for _, w := range h.repos {
		if w.eager == 0 {
			patient++
		}
	}
	rounds := max(1, (patient+patientLooks-1)/patientLooks)
	for path, w := range h.repos {
		if !w.left.IsZero() && (now.Sub(w.left) > linger || len(h.repos) > h.maxRepos) {
			delete(h.repos, path)
			left = append(left, w)
			continue
		}
		if w.eager > 0 || (w.number+h.rounds)%rounds == 0 {
			all = append(all, w)
		}
	}
	h.metrics.watched.Set(float64(len(h.repos)))
	return all, left
}

// each calls fn for each repository, a few at a time, until ctx ends. It does not wait for calls that hang. The caller is counted in
// h.running, and so is what it leaves running.
func (h *hub) each(ctx context.Context, all []*watched, fn func(*watched)) {
	next := make(chan *watched)
	var workers sync.WaitGroup
	workers.Add(min(lookers, len(all)))
	for range min(lookers, len(all)) {
		h.running.Go(func() { h.work(next, workers.Done, fn) })
	}
	for _, w := range all {
		if ctx.Err() != nil {
			break
		}
		select {
		case next <- w:
		case <-ctx.Done():
		}
	}
	close(next)
	workers.Wait()
}

// work calls fn for each repository that comes. If a call hangs, another worker takes its place, which is done instead of this one.
func (h *hub) work(next <-chan *watched, done func(), fn func(*watched)) {
	for w := range next {
		replaced := make(chan bool, 1)
		hangs := time.AfterFunc(h.interval, func() {
			if h.hanging.Add(1) > maxHanging {
				h.hanging.Add(-1)
				replaced <- false
				return
			}
			h.metrics.hanging.Inc()
			h.running.Go(func() { h.work(next, done, fn) })
			replaced <- true
		})
		fn(w)
		if !hangs.Stop() && <-replaced {
			h.metrics.hanging.Dec()
			h.hanging.Add(-1)
			return
		}
	}
	done()
}

// let ends the watch of a repository.
func (h *hub) let(w *watched) {
	w.turn <- struct{}{}
	defer func() { <-w.turn }()
	w.over = true
	h.pin(w, nil)
}

func (h *hub) close() {
	h.mu.Lock() // nothing begins after this
	h.end()
	h.mu.Unlock()
	h.running.Wait()
	h.mu.Lock()
	repos := h.repos
	h.repos = make(map[git.RepoPath]*watched)
	h.mu.Unlock()
	for _, w := range repos {
		h.let(w)
	}
}
