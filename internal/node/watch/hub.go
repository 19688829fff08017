// Package watch reports changes of refs: of all watched repositories, by any program. It checks each of
// them regularly, once for all its watchers.
package watch

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// From names a repository to watch.
type From struct {
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

// State is a state of a repository's refs. The repository stays open until Release is called.
type State struct {
	Refs    *refs.Snapshot
	Version git.Version
	Purges  string // changes with each purge of objects, which resets watchers
	Release func()
}

// Options configure a Hub.
type Options struct {
	// State returns the present state of a repository, or the latest one that this process knows. The error is NotFound
	// or Denied if the repository does not exist for watchers.
	State func(ctx context.Context, path git.RepoPath, isKnown bool) (State, error)
	Epoch func() uint64 // of events of repositories that do not exist

	Interval         time.Duration // of checks
	MaxSubscriptions int           // concurrent calls of Watch. Zero means 1,000.
	MaxRepositories  int           // watched at the same time. Zero means 10,000.

	Log        *slog.Logger
	Registerer prometheus.Registerer // may be nil
}

const (
	// MaxRepositories is the maximum number of repositories in one call of Watch.
	MaxRepositories = 10_000
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

// Hub watches repositories. It is safe for concurrent use.
//
// Lock order: watchedRepo.turn, Hub.mu, subscription.mu. Only the turn is held while files are read.
type Hub struct {
	options Options
	metrics *metrics

	ctx     context.Context // ends when the Hub is closed
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

	state   State // zero: the repository does not exist or was not checked yet
	isKnown bool  // current is valid
	current Event // the state, without changes
	ended   bool  // not watched any more

	history []Event // the last events
	floor   uint64  // the generation before the first of them
	kept    int     // changes in history

	// Guarded by Hub.mu.
	subscribers []*subscription // those that have its first state
	users       int             // subscriptions that name it
	eager       int             // of them, those that are not patient
	number      int             // spreads repositories with only patient watchers over rounds
	left        time.Time       // when the last subscription ended; zero: it has some
	triggered   bool            // a check was requested and has not begun
}

// New creates a Hub.
func New(o Options) *Hub {
	o.MaxSubscriptions = cmp.Or(o.MaxSubscriptions, 1000)
	o.MaxRepositories = cmp.Or(o.MaxRepositories, 10_000)
	h := &Hub{options: o, metrics: newMetrics(o.Registerer), repos: make(map[git.RepoPath]*watchedRepo)}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// MaxSubscriptions returns the maximum number of concurrent calls of Watch.
func (h *Hub) MaxSubscriptions() int { return h.options.MaxSubscriptions }

// Watch reports each change of refs in some repositories, by any program, until ctx ends or send fails. It returns that
// error. Calls of send do not overlap. First there is one event for each readable repository: the changes since the
// known version, or if these are unknown a reset, or that it is gone. A caller that is too slow gets a reset instead of
// the events that it missed. A repository that cannot be read now is tried again.
//
// The error is Invalid if there are too many repositories, or one twice. It is Exhausted if too many are watched, and
// Unavailable when the Hub closes.
func (h *Hub) Watch(ctx context.Context, from []From, send func(Event) error) error {
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
		return errClosed()
	}
	return err
}

func errClosed() error {
	return fault.Retry(fault.Unavailable, fault.RetrySoon, "the node is shutting down")
}

// Check checks a watched repository, of which this process knows a change, in the background.
func (h *Hub) Check(path git.RepoPath) {
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
func (h *Hub) byAnyName(path git.RepoPath) (found []*watchedRepo) {
	short := strings.TrimSuffix(strings.TrimSuffix(path.String(), ".git"), "/")
	for _, name := range []string{short, short + ".git", short + "/.git"} {
		path, _ := git.ParseRepoPath(name)
		if w := h.repos[path]; w != nil {
			found = append(found, w)
		}
	}
	return found
}

// Notify returns when the events of a change are queued for all watchers, or when ctx ends.
func (h *Hub) Notify(ctx context.Context, path git.RepoPath) {
	h.mu.Lock()
	found := h.byAnyName(path)
	h.mu.Unlock()
	for _, w := range found {
		h.check(ctx, w)
	}
}

// subscribe creates a subscription and starts to watch its repositories.
func (h *Hub) subscribe(from []From) (*subscription, error) {
	if len(from) > MaxRepositories {
		return nil, fault.New(fault.Invalid, "too many repositories: got %d, one call can watch %d", len(from),
			MaxRepositories)
	}
	s := newSubscription(len(from))
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return nil, errClosed()
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
	if h.subscriptions == h.options.MaxSubscriptions {
		return nil, fault.Retry(fault.Exhausted, fault.RetryMuchLater,
			"too many watches: the maximum is %d", h.options.MaxSubscriptions)
	}
	if h.inUse()+additional > h.options.MaxRepositories {
		return nil, fault.Retry(fault.Exhausted, fault.RetryMuchLater,
			"too many watched repositories: %d more exceed the maximum of %d", additional, h.options.MaxRepositories)
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
func (h *Hub) inUse() (n int) {
	for _, w := range h.repos {
		if w.left.IsZero() {
			n++
		}
	}
	return n
}

func (h *Hub) unsubscribe(s *subscription) {
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

// run checks the repositories in each interval until the Hub is closed.
func (h *Hub) run() {
	tick := time.NewTimer(h.options.Interval)
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
func (h *Hub) nextInterval() time.Duration {
	return h.options.Interval*9/10 + rand.N(h.options.Interval/5)
}

// nextRound returns the repositories to check, and removes those that are not watched any more.
func (h *Hub) nextRound(now time.Time) (due, unwatched []*watchedRepo) {
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
		if !w.left.IsZero() && (now.Sub(w.left) > linger || len(h.repos) > h.options.MaxRepositories) {
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
func (h *Hub) forEach(ctx context.Context, repos []*watchedRepo, fn func(*watchedRepo)) {
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
func (h *Hub) work(next <-chan *watchedRepo, done func(), fn func(*watchedRepo)) {
	for w := range next {
		replaced := make(chan bool, 1)
		timer := time.AfterFunc(h.options.Interval, func() {
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
func (h *Hub) endWatch(w *watchedRepo) {
	_ = w.turn.Acquire(context.Background(), 1)
	defer w.turn.Release(1)
	w.ended = true
	w.setState(State{})
}

// Close ends all calls of Watch and all checks.
func (h *Hub) Close() {
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
