package resolve

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Options configure Tiers.
type Options struct {
	Node node.Resolver
	// Group returns the group of a repository. A call of Watch has repositories of one group only. Nil means one group.
	Group func(git.RepoPath) string

	Entries    int           // maximum number of answers in memory, about 500 bytes each. Zero means 100,000.
	Watched    int           // maximum number of watched repositories. Zero means 10,000.
	TTL        time.Duration // validity of an answer without events. Zero means one minute.
	MissingTTL time.Duration // maximum validity of an error. Zero means 2 s.
	Redis      *Redis        // closed by Close; may be nil

	Metrics *Metrics
	Log     *slog.Logger
}

// Tiers is a caching Resolver.
//
// The answers of a repository belong to a state, which has the version for which they are valid, and they end with it.
// A state ends when an event or an answer has a newer version. An answer that cannot be compared with information that
// arrived meanwhile is ignored, and the node is asked again.
//
// Redis is used only for the version that the node reported as current. Values of other versions are ignored, so a
// value in Redis cannot be stale.
type Tiers struct {
	o       Options
	answers *lru.Cache[node.Question, *entry] // changed under mu only
	epoch   time.Time                         // start of the clock

	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	running sync.WaitGroup // fills, streams, and goroutines that start them

	mu      sync.Mutex
	repos   map[git.RepoPath]*repository
	flights map[node.Question]*flight
	asks    uint64 // counts calls and flights
	groups  map[string]*group
	watched int           // repositories with a present or future stream
	misses  int           // answers in memory that are errors
	crowded bool          // some repositories could not be watched since the last sweep
	wake    chan struct{} // capacity 1; signals repositories to watch
}

// flight is a running look-up, shared by all callers with the same question. It is guarded by the lock of the Tiers
// until its batch is done.
type flight struct {
	question node.Question
	repo     *repository
	fence    uint64 // of the repository when the look-up began
	number   uint64
	batch    *batch
	result   node.Result
}

// batch is the flights of one call, which are looked up together.
type batch struct {
	flights []*flight
	users   int // calls that wait for it
	// deadline, which a node that hangs may miss; its answer is too old for later callers
	until  int64
	cancel context.CancelFunc
	done   chan struct{}
	err    error // reason for a missing result; valid after done
}

const (
	// maxBatch is the maximum number of questions of one call.
	maxBatch = 20_000
	// maxRounds is the maximum number of repetitions because refs changed meanwhile.
	maxRounds = 4
	// fillLimit is the time limit of a look-up with all its rounds.
	fillLimit = 30 * time.Second
)

// New creates Tiers. The caller has to call Close.
func New(o Options) *Tiers {
	if o.Entries <= 0 {
		o.Entries = 100_000
	}
	if o.Watched <= 0 {
		o.Watched = 10_000
	}
	if o.TTL <= 0 {
		o.TTL = time.Minute
	}
	if o.MissingTTL <= 0 {
		o.MissingTTL = 2 * time.Second
	}
	if o.Group == nil {
		o.Group = func(git.RepoPath) string { return "" }
	}
	t := &Tiers{
		o: o, epoch: time.Now(), wake: make(chan struct{}, 1),
		repos: map[git.RepoPath]*repository{}, flights: map[node.Question]*flight{}, groups: map[string]*group{},
	}
	t.answers, _ = lru.NewWithEvict(o.Entries, t.removed) // fails only for a size below 1
	t.ctx, t.stop = context.WithCancel(context.Background())
	t.running.Go(t.watchAll)
	return t
}

// Close ends the work in the background. No call of Resolve may be running.
func (t *Tiers) Close() error {
	t.mu.Lock() // no work starts afterwards
	t.stop()
	t.mu.Unlock()
	t.running.Wait()
	if t.o.Redis != nil {
		return t.o.Redis.Close()
	}
	return nil
}

// Forget drops all answers, because repositories may have moved to other nodes.
func (t *Tiers) Forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.repos {
		t.end(r)
	}
	for _, g := range t.groups {
		for _, s := range g.streams {
			s.cancel()
		}
	}
}

// now returns the time in nanoseconds of a monotonic clock.
func (t *Tiers) now() int64 { return int64(time.Since(t.epoch)) }

// Resolve answers questions in their order, from memory if possible. Answers about one repository are from one state,
// unless it changes too fast. Errors of single questions are those of the node.
func (t *Tiers) Resolve(ctx context.Context, questions []node.Question) ([]node.Result, error) {
	if len(questions) > maxBatch {
		return nil, fault.New(fault.Invalid, "too many revisions: got %d, one call can resolve %d", len(questions), maxBatch)
	}
	results := make([]node.Result, len(questions))
	var missing []int
	for i, q := range questions {
		if !t.recall(normal(q), &results[i]) {
			missing = append(missing, i)
		}
	}
	for round := 0; len(missing) > 0 && round < maxRounds; round++ {
		t.o.Metrics.missed.Add(float64(len(missing)))
		if err := t.ask(ctx, questions, missing, results); err != nil {
			return nil, err
		}
		missing = torn(questions, results)
	}
	return results, nil
}

// normal returns the question in its canonical form.
func normal(q node.Question) node.Question {
	if q.Revision == "" {
		q.Revision = "HEAD"
	}
	return q
}

// torn returns the questions about repositories whose answers are from more than one state.
func torn(questions []node.Question, results []node.Result) (again []int) {
	if len(questions) < 2 {
		return nil
	}
	first := map[git.RepoPath]git.Version{}
	changed := map[git.RepoPath]bool{}
	for i, q := range questions {
		v := results[i].Version
		if v == (git.Version{}) {
			continue
		}
		if seen, ok := first[q.Repository]; !ok {
			first[q.Repository] = v
		} else if seen != v {
			changed[q.Repository] = true
		}
	}
	if len(changed) == 0 {
		return nil
	}
	for i, q := range questions {
		if changed[q.Repository] {
			again = append(again, i)
		}
	}
	return again
}

// ask looks up answers that are not in memory, together with concurrent callers.
func (t *Tiers) ask(ctx context.Context, questions []node.Question, missing []int, results []node.Result) error {
	var since uint64 // earlier flights may have failed for a reason that is gone
	for {
		flights, batches, led := t.board(questions, missing, results, &since)
		if led != nil {
			t.lead(led)
		}
		err := t.wait(ctx, batches)
		if err != nil {
			return err
		}
		again := missing[:0:0]
		for j, i := range missing {
			switch f := flights[j]; {
			case f == nil: // it was in memory
			case f.batch.err != nil && f.number > since:
				return f.batch.err
			case f.batch.err != nil, f.result.Err != nil && f.number < since:
				again = append(again, i)
			default:
				results[i] = f.result
			}
		}
		if missing = again; len(missing) == 0 {
			return nil
		}
	}
}

// board returns the flight for each question and creates missing ones; led are the created ones.
func (t *Tiers) board(questions []node.Question, missing []int, results []node.Result, since *uint64) (
	flights []*flight, batches []*batch, led *batch) {
	flights = make([]*flight, len(missing))
	t.mu.Lock()
	defer t.mu.Unlock()
	if *since == 0 {
		t.asks++
		*since = t.asks
	}
	for j, i := range missing {
		q := normal(questions[i])
		if t.recall(q, &results[i]) {
			continue
		}
		f := t.flights[q]
		if f == nil || f.fence != f.repo.fence || t.now() >= f.batch.until {
			if led == nil {
				led = &batch{until: t.now() + int64(fillLimit), done: make(chan struct{})}
			}
			r := t.repository(q.Repository)
			r.flights++
			t.asks++
			f = &flight{question: q, repo: r, fence: r.fence, number: t.asks, batch: led}
			led.flights = append(led.flights, f)
			t.flights[q] = f
		}
		flights[j] = f
		if len(batches) == 0 || batches[len(batches)-1] != f.batch && !slices.Contains(batches, f.batch) {
			f.batch.users++
			batches = append(batches, f.batch)
		}
	}
	return flights, batches, led
}

// lead starts the look-up of a batch. It continues as long as any caller waits.
func (t *Tiers) lead(b *batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.ctx, fillLimit)
	b.cancel = cancel
	if t.ctx.Err() != nil {
		b.err = fault.Retry(fault.Unavailable, fault.RetrySoon, "the server is shutting down")
		cancel()
		t.land(b)
		return
	}
	t.running.Go(func() {
		defer cancel()
		began := time.Now()
		err := t.fill(ctx, b.flights)
		t.o.Metrics.compute.Observe(time.Since(began).Seconds())
		t.mu.Lock()
		defer t.mu.Unlock()
		b.err = err
		t.land(b)
	})
}

// land ends a batch. t.mu is held.
func (t *Tiers) land(b *batch) {
	for _, f := range b.flights {
		t.leave(f)
		f.repo.flights--
		t.release(f.repo)
	}
	close(b.done)
}

// leave closes a flight for further callers. t.mu is held.
func (t *Tiers) leave(f *flight) {
	if t.flights[f.question] == f {
		delete(t.flights, f.question)
	}
}

// wait waits for batches. A batch without waiting callers is cancelled.
func (t *Tiers) wait(ctx context.Context, batches []*batch) error {
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, b := range batches {
			b.users--
			if b.users > 0 || b.cancel == nil {
				continue
			}
			b.cancel()
			for _, f := range b.flights {
				t.leave(f)
			}
		}
	}()
	for _, b := range batches {
		select {
		case <-b.done:
		case <-ctx.Done():
			return fault.Wrap(fault.KindOf(ctx.Err()), "resolve revisions", ctx.Err())
		}
	}
	return nil
}

// fill looks up flights in Redis and then at the node. An error means that no question was answered.
func (t *Tiers) fill(ctx context.Context, flights []*flight) error {
	pending := flights
	if t.o.Redis != nil {
		pending = t.fromRedis(ctx, flights)
	}
	for round := 1; len(pending) > 0; round++ {
		questions := make([]node.Question, len(pending))
		t.mu.Lock()
		for i, f := range pending {
			questions[i] = f.question
			f.fence = f.repo.fence
		}
		t.mu.Unlock()
		at := t.now()
		results, err := t.o.Node.Resolve(ctx, questions)
		if err == nil && ctx.Err() != nil {
			err = fault.Wrap(fault.KindOf(ctx.Err()), "the node answered too late", ctx.Err())
		}
		if err == nil && len(results) != len(questions) {
			err = fault.New(fault.Internal, "the node returned %d results for %d revisions", len(results), len(questions))
		}
		if err != nil && len(pending) == len(flights) {
			return err
		}
		for i := range pending {
			if err != nil {
				pending[i].result = node.Result{Err: err}
			}
		}
		if err != nil {
			return nil
		}
		pending = t.take(pending, results, at, round == maxRounds)
	}
	return nil
}

// take processes the answers of the node to questions that were sent at a time, and returns the flights that have to be
// repeated.
func (t *Tiers) take(flights []*flight, results []node.Result, at int64, last bool) (again []*flight) {
	var known []stored // for Redis
	hits := 0
	t.mu.Lock()
	for i, f := range flights {
		result := results[i]
		if result.Err == nil {
			hits++
		}
		if result.Version != (git.Version{}) {
			if t.learn(f.repo, f.fence, result.Version, at) {
				t.keep(f.repo, f.question, result, at)
				if result.Err == nil && result.Ref != "" {
					known = append(known, stored{f.question, result.Answer})
				}
			} else if !last {
				again = append(again, f)
				continue
			}
		}
		f.result = result
	}
	t.mu.Unlock()
	t.o.Metrics.nodeHit.Add(float64(hits))
	t.o.Metrics.nodeMissed.Add(float64(len(flights) - hits))
	if t.o.Redis != nil {
		t.o.Redis.put(known)
	}
	return again
}

// fromRedis looks up flights in Redis whose current version is known, and returns the remaining ones.
func (t *Tiers) fromRedis(ctx context.Context, flights []*flight) (pending []*flight) {
	var asked []*flight
	var states []*state
	var wanted []stored
	t.mu.Lock()
	for _, f := range flights {
		if s := f.repo.state; s != nil && s.holds(t.now) {
			asked, states = append(asked, f), append(states, s)
			wanted = append(wanted, stored{f.question, node.Answer{Version: s.version}})
		} else {
			pending = append(pending, f)
		}
	}
	t.mu.Unlock()
	if len(asked) == 0 {
		return flights
	}
	at := t.now()
	found := t.o.Redis.get(ctx, wanted)
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, f := range asked {
		if !found[i] || f.repo.state != states[i] || !states[i].holds(t.now) { // an event arrived meanwhile
			pending = append(pending, f)
			continue
		}
		f.result = node.Result{Answer: wanted[i].answer}
		t.keep(f.repo, f.question, f.result, at)
	}
	return pending
}
