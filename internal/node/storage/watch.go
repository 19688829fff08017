package storage

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// WatchFrom names a repository to watch.
type WatchFrom struct {
	Path  git.RepoPath
	Known *git.Version // what the caller knows; nil: nothing
	// Patient is set by callers that can wait for changes by other programs in the repository's directory. The more
	// repositories have only patient watchers, the less often each is checked. Changes by the node itself are reported
	// to everybody at once.
	Patient bool
}

// Event is a change of a watched repository. Events are shared and must not be modified.
type Event struct {
	Path    git.RepoPath
	Version git.Version // after the change
	Reset   bool        // the changes are unknown: forget the earlier state
	Gone    bool        // the repository does not exist; it is still watched
	Changes []refs.Change
}

const (
	// MaxWatched is the maximum number of repositories in one call of Watch.
	MaxWatched = 10_000
	// linger is how long a repository stays watched after its last watcher has left, so that a watcher that returns
	// gets the changes that it missed.
	linger = time.Minute
	// maxHistory is the maximum number of events kept for each repository, and maxChanges of changes in them. It is also
	// the maximum for one event: with more changes it becomes a reset.
	maxHistory = 64
	maxChanges = 10_000
	// maxChecks is the maximum number of concurrent checks. A check that takes longer than the interval counts as hanging,
	// for example on a file system that does not respond. Up to maxHanging of these do not count towards maxChecks.
	maxChecks  = 4
	maxHanging = 64
	// patientChecks is the number of repositories with only patient watchers that are checked in one round. A check
	// without changes takes 40 us of CPU time: 10,000 of them each second would use a third of a CPU.
	patientChecks = 200
)

// hub watches repositories. It checks each of them regularly, once for all its watchers.
//
// Lock order: watchedRepo.turn, hub.mu, subscription.mu. Only the turn is held while files are read.
type hub struct {
	node             *Node
	interval         time.Duration
	maxSubscriptions int
	maxRepos         int
	metrics          *metrics

	ctx     context.Context // ends when the node is closed
	cancel  context.CancelFunc
	running sync.WaitGroup
	hanging atomic.Int64 // checks

	mu            sync.Mutex
	started       bool
	rounds        int // of checks
	created       int // repositories that were ever watched
	subscriptions int
	repos         map[git.RepoPath]*watchedRepo
}

// watchedRepo is one repository with its state at the last check.
type watchedRepo struct {
	path git.RepoPath
	turn *semaphore.Weighted // held during a check; it guards the fields below

	handle  *handle // pinned; nil: the repository does not exist or was not checked yet
	snap    *refs.Snapshot
	isKnown bool  // current is valid
	current Event // the state, without changes
	ended   bool  // not watched any more

	history []Event // the last events
	floor   uint64  // the generation before the first of them
	kept    int     // changes in history

	// Guarded by hub.mu.
	subscribers []*subscription // those that have its first state
	users       int             // subscriptions that name it
	eager       int             // of them, those that are not patient
	number      int             // spreads repositories with only patient watchers over rounds
	left        time.Time       // when the last subscription ended; zero: it has some
	triggered   bool            // a check was requested and has not begun
}

func newHub(n *Node, o Options) *hub {
	h := &hub{
		node: n, interval: o.CheckInterval, maxSubscriptions: o.MaxWatches, maxRepos: o.MaxWatched, metrics: n.metrics,
		repos: make(map[git.RepoPath]*watchedRepo),
	}
	if h.interval <= 0 {
		h.interval = n.places.CheckInterval()
	}
	if h.maxSubscriptions <= 0 {
		h.maxSubscriptions = 1000
	}
	if h.maxRepos <= 0 {
		h.maxRepos = 10_000
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// Watch reports each change of refs in some repositories, by any program, until ctx ends or send fails. It returns that
// error. Calls of send do not overlap. First there is one event for each readable repository: the changes since the
// known version, or if these are unknown a reset, or that it is gone. A caller that is too slow gets a reset instead of
// the events that it missed. A repository that cannot be read now is tried again.
//
// The error is Invalid if there are too many repositories, or one twice. It is Exhausted if too many are watched, and
// Unavailable when the node closes.
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
		h.forEach(ctx, s.repos, func(w *watchedRepo) { h.join(ctx, w, s) })
	}()
	err = s.serve(ctx, send)
	cancel()
	<-joined
	if h.ctx.Err() != nil {
		return fault.Retry(fault.Unavailable, fault.RetrySoon, "the node is shutting down")
	}
	return err
}

// OnChange sets a function that is called with each repository whose refs the node itself changes, before the client
// gets its response. The function must not block.
func (n *Node) OnChange(f func(git.RepoPath)) { n.listener.Store(&f) }

// RefsChanged is called when the node itself has changed a repository's refs, or created or deleted it. It notifies
// watchers and starts the work that follows a change, in the background.
func (n *Node) RefsChanged(path git.RepoPath) { n.refsChanged(path) }

// refsChanged is RefsChanged. It returns a channel for warmer.wait.
func (n *Node) refsChanged(path git.RepoPath) (prepared <-chan struct{}) {
	if f := n.listener.Load(); f != nil {
		(*f)(path)
	}
	if n.warmer != nil { // first, because clients are going to fetch
		prepared = n.warmer.changed(path)
	}
	if n.upkeep != nil {
		n.upkeep.changed(path)
	}
	n.CheckWatches(path)
	return prepared
}

// CheckWatches checks a watched repository, of which this node knows a change, in the background.
func (n *Node) CheckWatches(path git.RepoPath) {
	h := n.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return
	}
	for _, w := range h.byAnyName(path) {
		if !w.triggered {
			w.triggered = true
			h.running.Go(func() { h.check(h.ctx, w) })
		}
	}
}

// byAnyName returns the watched repositories that a path can stand for. The caller holds h.mu.
func (h *hub) byAnyName(path git.RepoPath) (found []*watchedRepo) {
	short := strings.TrimSuffix(strings.TrimSuffix(path.String(), ".git"), "/")
	for _, name := range []string{short, short + ".git", short + "/.git"} {
		path, _ := git.ParseRepoPath(name)
		if w := h.repos[path]; w != nil {
			found = append(found, w)
		}
	}
	return found
}

// notifyWatchers returns when the events of a change are queued for all watchers, or when ctx ends.
func (n *Node) notifyWatchers(ctx context.Context, path git.RepoPath) {
	h := n.hub
	h.mu.Lock()
	found := h.byAnyName(path)
	h.mu.Unlock()
	for _, w := range found {
		h.check(ctx, w)
	}
}

// subscribe creates a subscription and starts to watch its repositories.
func (h *hub) subscribe(from []WatchFrom) (*subscription, error) {
	if len(from) > MaxWatched {
		return nil, fault.New(fault.Invalid, "too many repositories: got %d, one call can watch %d", len(from), MaxWatched)
	}
	s := newSubscription(len(from))
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return nil, fault.Retry(fault.Unavailable, fault.RetrySoon, "the node is shutting down")
	}
	additional := 0
	for _, f := range from {
		if _, twice := s.known[f.Path]; twice {
			return nil, fault.New(fault.Invalid, "repository %s occurs twice", f.Path)
		}
		s.known[f.Path] = f.Known
		if h.repos[f.Path] == nil {
			additional++
		}
	}
	if h.subscriptions == h.maxSubscriptions {
		return nil, fault.Retry(fault.Exhausted, fault.RetryMuchLater,
			"too many watches: the maximum is %d", h.maxSubscriptions)
	}
	if h.inUse()+additional > h.maxRepos {
		return nil, fault.Retry(fault.Exhausted, fault.RetryMuchLater,
			"too many watched repositories: %d more exceed the maximum of %d", additional, h.maxRepos)
	}
	h.subscriptions++
	h.running.Add(1)
	for _, f := range from {
		w := h.repos[f.Path]
		if w == nil {
			h.created++
			w = &watchedRepo{path: f.Path, turn: semaphore.NewWeighted(1), number: h.created}
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

// inUse returns the number of repositories with watchers. The others make room for new ones. The caller holds h.mu.
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
	h.subscriptions--
	for _, w := range s.eager {
		w.eager--
	}
	for _, w := range s.repos {
		w.subscribers = slices.DeleteFunc(w.subscribers, func(other *subscription) bool { return other == s })
		if w.users--; w.users == 0 {
			w.left = time.Now()
		}
	}
}

// run checks the repositories in each interval until the node is closed.
func (h *hub) run() {
	tick := time.NewTimer(h.interval)
	defer tick.Stop()
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-tick.C:
		}
		tick.Reset(h.nextInterval())
		start := time.Now()
		due, unwatched := h.nextRound(start)
		h.forEach(h.ctx, due, h.checkIfIdle)
		for _, w := range unwatched {
			h.running.Go(func() { h.endWatch(w) }) // it may wait for a check that hangs
		}
		h.metrics.round.Observe(time.Since(start).Seconds())
	}
}

// nextInterval returns the time until the next round. The rounds of several nodes with one store are spread.
func (h *hub) nextInterval() time.Duration {
	return h.interval*9/10 + rand.N(h.interval/5)
}

// nextRound returns the repositories to check, and removes those that are not watched any more.
func (h *hub) nextRound(now time.Time) (due, unwatched []*watchedRepo) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rounds++
	patient := 0
	for _, w := range h.repos {
		if w.eager == 0 {
			patient++
		}
	}
	rounds := max(1, (patient+patientChecks-1)/patientChecks)
	for path, w := range h.repos {
		if !w.left.IsZero() && (now.Sub(w.left) > linger || len(h.repos) > h.maxRepos) {
			delete(h.repos, path)
			unwatched = append(unwatched, w)
			continue
		}
		if w.eager > 0 || (w.number+h.rounds)%rounds == 0 {
			due = append(due, w)
		}
	}
	h.metrics.watched.Set(float64(len(h.repos)))
	return due, unwatched
}

// forEach calls fn for each repository, a few at a time, until ctx ends. It does not wait for calls that hang. The
// caller and its remaining goroutines are counted in h.running.
func (h *hub) forEach(ctx context.Context, repos []*watchedRepo, fn func(*watchedRepo)) {
	next := make(chan *watchedRepo)
	var workers sync.WaitGroup
	workers.Add(min(maxChecks, len(repos)))
	for range min(maxChecks, len(repos)) {
		h.running.Go(func() { h.work(next, workers.Done, fn) })
	}
	for _, w := range repos {
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

// work calls fn for each repository that it receives. If a call hangs, another worker takes over.
func (h *hub) work(next <-chan *watchedRepo, done func(), fn func(*watchedRepo)) {
	for w := range next {
		replaced := make(chan bool, 1)
		timer := time.AfterFunc(h.interval, func() {
			if h.hanging.Add(1) > maxHanging {
				h.hanging.Add(-1)
				replaced <- false
				return
			}
			h.running.Go(func() { h.work(next, done, fn) })
			replaced <- true
		})
		fn(w)
		if !timer.Stop() && <-replaced {
			h.hanging.Add(-1)
			return
		}
	}
	done()
}

// endWatch releases a repository.
func (h *hub) endWatch(w *watchedRepo) {
	_ = w.turn.Acquire(context.Background(), 1)
	defer w.turn.Release(1)
	w.ended = true
	h.pin(w, nil)
}

func (h *hub) close() {
	h.mu.Lock() // nothing begins after this
	h.cancel()
	h.mu.Unlock()
	h.running.Wait()
	h.mu.Lock()
	repos := h.repos
	h.repos = make(map[git.RepoPath]*watchedRepo)
	h.mu.Unlock()
	for _, w := range repos {
		h.endWatch(w)
	}
}
