package resolve

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// Options configure Tiers.
type Options struct {
	Node Node
	// Group returns the group of a repository. One call of Watch has repositories of one group only. Nil: all are in one.
	Group func(git.RepoPath) string

	Entries    int           // maximum number of answers in memory, about 500 bytes each. Zero means 100,000.
	Watched    int           // maximum number of watched repositories. Zero means 10,000.
	TTL        time.Duration // validity of an answer without events. Zero means one minute.
	MissingTTL time.Duration // maximum validity of an error. Zero means 2 s.
	Redis      *Redis        // closed by Close; may be nil

	Metrics *Metrics
	Log     *slog.Logger
}

// Tiers are a caching Resolver.
//
// A repository's answers belong to a state, which carries the version they are true of, and end with it. A state ends
// when an event or an answer tells of a newer one. One that cannot be compared with what became known while it was on
// its way counts for nothing: the node is asked anew.
//
// Redis is asked only for what is known to be the current version, from the node: what it has of another one is not
// used, so a value in it cannot be stale, however it came there.
type Tiers struct {
	o     Options
	table *table
	epoch time.Time // now is counted from here

	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	running sync.WaitGroup // fills, streams, and what begins these

	mu      sync.Mutex
	repos   map[git.RepoPath]*repository
	flights map[Question]*flight
	asks    uint64 // counts calls and flights
	groups  map[string]*group
	watched int           // repositories that have a stream, or will
	crowded bool          // some could not be watched since the last sweep
	wake    chan struct{} // capacity 1: there is something to watch
}

// flight is a look-up that is under way, for all who ask the same. Guarded by the lock of the Tiers until its batch is
// done.
type flight struct {
	question Question
	repo     *repository
	fence    uint64 // of the repository when the look-up began
	number   uint64
	batch    *batch
	result   Result
}

// batch is the flights of one call, which are looked up together.
type batch struct {
	flights []*flight
	users   int // calls that wait for it
	// when its time is over, which a node that hangs may not notice: what it answers then is too old for who asks later
	until  int64
	cancel context.CancelFunc
	done   chan struct{}
	err    error // why there is no result; after done
}

const (
	// maxBatch is how many questions one call may have.
	maxBatch = 20_000
	// maxRounds is how often something is asked anew because refs changed meanwhile.
	maxRounds = 4
	// fillLimit bounds one look-up, with all of its rounds.
	fillLimit = 30 * time.Second
)

// New creates Tiers. The caller has to close them.
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
		o: o, table: newTable(o.Entries), epoch: time.Now(), wake: make(chan struct{}, 1),
		repos: map[git.RepoPath]*repository{}, flights: map[Question]*flight{}, groups: map[string]*group{},
	}
	t.ctx, t.stop = context.WithCancel(context.Background())
	t.running.Go(t.watchAll)
	return t
}

// Close ends the work in the background. No call of Resolve may be running.
func (t *Tiers) Close() error {
	t.mu.Lock() // nothing begins after this
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

// now is the time in nanoseconds, by a clock that nobody sets.
func (t *Tiers) now() int64 { return int64(time.Since(t.epoch)) }

// Resolve answers questions in their order, from memory where that is current. Answers about one repository are of one
// state, unless it changes faster than it can be asked. The errors of single questions are those of the node.
func (t *Tiers) Resolve(ctx context.Context, questions []Question) ([]Result, error) {
	if len(questions) > maxBatch {
		return nil, fault.New(fault.Invalid, "too many revisions: got %d, one call can resolve %d", len(questions), maxBatch)
	}
	results := make([]Result, len(questions))
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

// normal is the question in the form in which it is remembered.
func normal(q Question) Question {
	if q.Revision == "" {
		q.Revision = "HEAD"
	}
	return q
}

// torn lists the questions about repositories of which the answers show more than one state.
func torn(questions []Question, results []Result) (again []int) {
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

// ask finds the answers that are not in memory, together with others who ask for them.
func (t *Tiers) ask(ctx context.Context, questions []Question, missing []int, results []Result) error {
	var since uint64 // flights from before may have failed for what is mended
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

// board finds for each question the flight that looks it up, or makes one; led are those that it made.
func (t *Tiers) board(questions []Question, missing []int, results []Result, since *uint64) (flights []*flight,
	batches []*batch, led *batch) {
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
		switch {
		case f != nil && f.fence == f.repo.fence && t.now() < f.batch.until:
			t.o.Metrics.shared.Inc()
		default:
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

// lead begins to look up a batch. It goes on without whoever began it, as long as anybody waits.
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

// leave sees to it that nobody boards a flight any more. t.mu is held.
func (t *Tiers) leave(f *flight) {
	if t.flights[f.question] == f {
		delete(t.flights, f.question)
	}
}

// wait waits for batches. One that nobody waits for any more is ended.
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

// fill looks up flights in Redis, and what that does not know at the node. The error says why none was answered.
func (t *Tiers) fill(ctx context.Context, flights []*flight) error {
	pending := flights
	if t.o.Redis != nil {
		pending = t.fromRedis(ctx, flights)
	}
	for round := 1; len(pending) > 0; round++ {
		questions := make([]Question, len(pending))
		t.mu.Lock()
		for i, f := range pending {
			questions[i] = f.question
			f.fence = f.repo.fence
		}
		t.mu.Unlock()
		at, began := t.now(), time.Now()
		results, err := t.o.Node.Resolve(ctx, questions)
		t.o.Metrics.nodeSeconds.Observe(time.Since(began).Seconds())
		if err == nil && ctx.Err() != nil {
			err = fault.Wrap(fault.KindOf(ctx.Err()), "the node answered too late", ctx.Err())
		}
		if err == nil && len(results) != len(questions) {
			err = fault.New(fault.Internal, "%d revisions were asked for, and %d answered", len(questions), len(results))
		}
		if err != nil && len(pending) == len(flights) {
			return err
		}
		for i := range pending {
			if err != nil {
				pending[i].result = Result{Err: err}
			}
		}
		if err != nil {
			return nil
		}
		pending = t.take(pending, results, at, round == maxRounds)
	}
	return nil
}

// take takes in what the node has answered to questions that it was asked at a time, and returns what it has to be
// asked anew.
func (t *Tiers) take(flights []*flight, results []Result, at int64, last bool) (again []*flight) {
	var known []stored // for Redis
	hits := 0
	t.mu.Lock()
	for i, f := range flights {
		result := results[i]
		if result.Err == nil {
			hits++
		}
		if result.Version != (git.Version{}) {
			switch t.learn(f.repo, f.fence, result.Version, at) {
			case old:
				t.o.Metrics.dropped.WithLabelValues("old").Inc()
				if !last {
					again = append(again, f)
					continue
				}
			case unsure:
				t.o.Metrics.dropped.WithLabelValues("unsure").Inc()
				if !last {
					again = append(again, f)
					continue
				}
			case current:
				t.keep(f.repo, f.question, result, at)
				if result.Err == nil && result.Ref != "" {
					known = append(known, stored{f.question, result.Answer})
				}
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

// fromRedis looks up flights in Redis as far as the version that is current is known, and returns those that are to be
// asked of the node.
func (t *Tiers) fromRedis(ctx context.Context, flights []*flight) (pending []*flight) {
	var asked []*flight
	var states []*state
	var wanted []stored
	t.mu.Lock()
	for _, f := range flights {
		if s := f.repo.state; s != nil && s.holds(t.now) {
			asked, states = append(asked, f), append(states, s)
			wanted = append(wanted, stored{f.question, Answer{Version: s.version}})
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
		if !found[i] || f.repo.state != states[i] || !states[i].holds(t.now) { // an event came meanwhile
			pending = append(pending, f)
			continue
		}
		f.result = Result{Answer: wanted[i].answer}
		t.keep(f.repo, f.question, f.result, at)
	}
	return pending
}
