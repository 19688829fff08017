package store

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// The events of a store are in the records of its repositories. The event log puts them in one order: each of its
// batches is created once, under the next number, so that all nodes read the same events. After a record with events, a
// node appends a batch with all events of the repository that the log does not have, whichever node made them.
//
// For that a node opens the repository before the record. An opening is an object with two numbers. The log has all
// events up to record From, unless another opening covers them. Events after From are in batches after Batch. The node
// creates the opening, and then reads the openings that it finds beside it. An opening is removed when the log has all
// events of its node. So the missing events can be found from the openings alone, and every node can complete the log
// for a node that was lost.
const (
	eventsPrefix   = "events/"
	openPrefix     = eventsPrefix + "open/" // ID/TXN
	largePrefix    = eventsPrefix + "large/"
	maxEventBytes  = 32 << 10          // of events in a record; more are in an object of their own
	maxEventBatch  = 8 * maxEventBytes // after which a batch gets no other record
	maxLargeEvents = 64 << 20          // bytes of such an object. A batch that has it may have twice as many.
	openIdle       = 30 * time.Second  // until an opening that is not used is removed
	openAge        = time.Hour         // after which an opening is replaced by another one
	openLost       = 24 * time.Hour    // after which another node removes it
	publishPause   = 100 * time.Millisecond
	eventPoll      = 2 * time.Second // for batches of other nodes
	completeEvery  = 5               // polls, for events of lost nodes
)

// opening is the content of an object below openPrefix.
type opening struct {
	From  uint64 `json:"from"`
	Batch uint64 `json:"batch"`
	Node  string `json:"node"` // for people
}

// earlier returns what holds for two openings of one repository together.
func (o opening) earlier(other opening) opening {
	o.From, o.Batch = min(o.From, other.From), min(o.Batch, other.Batch)
	return o
}

// ownOpening is an opening of this process.
type ownOpening struct {
	opening
	repository *repository
	key        string
	ready      chan struct{} // closed when the fields above and err are valid
	err        error
	users      int       // records that may be appended; guarded by events.mu
	made, used time.Time // guarded by events.mu
}

// events are the events of the store as this process knows them.
type events struct {
	store *Store
	log   eventLog
	kick  chan struct{} // has room for one

	completing sharedRun[struct{}]
	publishing chan struct{} // has one element while a batch is made
	mu         sync.Mutex
	open       map[string]*ownOpening // by repository
	dirty      map[string]bool        // repositories of open with records that may not be published
	seen       map[string]opening     // those of others, by key
	changed    chan struct{}
	asked      time.Time // for changed
	errors     rate.Sometimes
}

func newEvents(s *Store) *events {
	e := &events{store: s, kick: make(chan struct{}, 1), publishing: make(chan struct{}, 1),
		open:  make(map[string]*ownOpening),
		dirty: make(map[string]bool), seen: make(map[string]opening), changed: make(chan struct{}),
		errors: rate.Sometimes{Interval: time.Minute}}
	e.log = eventLog{bucket: s.bucket, node: s.options.Node, id: s.identity.ID, published: make(map[string]uint64),
		maxLarge: maxLargeEvents}
	return e
}

// begin opens a repository before a record with events. If isNew, the repository has no record. The caller calls
// release when the record is decided.
func (e *events) begin(ctx context.Context, r *repository, isNew bool) (release func(), err error) {
	if err := e.store.untested(); err != nil {
		return nil, err
	}
	e.mu.Lock()
	o := e.open[r.id]
	if o == nil {
		o = &ownOpening{repository: r, ready: make(chan struct{}), made: time.Now()}
		e.open[r.id] = o
		e.store.running.Go(func() { e.create(o, isNew) })
	}
	o.users++
	e.mu.Unlock()
	release = sync.OnceFunc(func() { e.release(o) })
	select {
	case <-o.ready:
		err = o.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		release()
	}
	return release, err
}

func (e *events) release(o *ownOpening) {
	e.mu.Lock()
	o.users--
	o.used = time.Now()
	e.dirty[o.repository.id] = true
	e.mu.Unlock()
	e.wake()
}

func (e *events) wake() {
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// prepare opens a repository in the background, because a push has begun.
func (e *events) prepare(r *repository) {
	e.mu.Lock()
	isOpen := e.open[r.id] != nil
	e.mu.Unlock()
	if !isOpen {
		e.store.running.Go(func() {
			if release, err := e.begin(e.store.ctx, r, false); err == nil {
				release()
			}
		})
	}
}

// create creates the object of an opening.
func (e *events) create(o *ownOpening, isNew bool) {
	ctx, cancel := context.WithTimeout(e.store.ctx, eventTimeout)
	defer cancel()
	o.err = e.tryCreate(ctx, o, isNew)
	if o.err != nil {
		e.mu.Lock()
		delete(e.open, o.repository.id)
		e.mu.Unlock()
	}
	close(o.ready)
}

const eventTimeout = 30 * time.Second

func (e *events) tryCreate(ctx context.Context, o *ownOpening, isNew bool) error {
	r := o.repository
	batch, err := e.log.known(ctx)
	if err != nil {
		return err
	}
	o.opening = opening{Batch: batch, Node: e.store.options.Node}
	if !isNew { // after the number of the batch is known: later events are in later batches
		state, err := r.check().wait(ctx)
		if err != nil {
			return err
		}
		o.From = state.record.Number
	}
	o.key = openPrefix + r.id + "/" + replog.NewID()
	body, err := json.Marshal(o.opening)
	if err != nil {
		return err
	}
	if err := e.store.bucket.Create(ctx, o.key, append(body, '\n')); err != nil || isNew {
		return err
	}
	others, _, err := e.list(ctx, openPrefix+r.id+"/")
	for _, other := range others {
		o.opening = o.earlier(other)
	}
	return err
}

// list returns the openings below a prefix, by key, and the keys of those that lost nodes have left.
func (e *events) list(ctx context.Context, prefix string) (found map[string]opening, lost []string, err error) {
	found = make(map[string]opening)
	err = bucket.Each(ctx, e.store.bucket, prefix, func(info bucket.Info) error {
		e.mu.Lock()
		o, ok := e.seen[info.Key]
		e.mu.Unlock()
		if !ok {
			body, _, err := e.store.bucket.Get(ctx, info.Key, replog.MaxRecord)
			if errors.Is(err, bucket.ErrNotFound) {
				return nil
			}
			if err != nil {
				return err
			}
			if err := json.Unmarshal(body, &o); err != nil {
				e.store.log.Error("an object of the event log is damaged; remove it", "key", info.Key, "error", err)
				return nil
			}
		}
		found[info.Key] = o
		if time.Since(info.Modified) > openLost {
			lost = append(lost, info.Key)
		}
		return nil
	})
	return found, lost, err
}

// run publishes events until the Store closes.
func (e *events) run() {
	poll := time.NewTicker(eventPoll)
	defer poll.Stop()
	for i := 0; ; i++ {
		var err error
		select {
		case <-e.store.ctx.Done():
			return
		case <-e.kick:
			dirty := e.own(true)
			var skipped map[string]bool
			if skipped, err = e.publish(e.store.ctx, dirty); err == nil {
				maps.DeleteFunc(dirty, func(id string, _ opening) bool { return !skipped[id] })
				_ = retry.Sleep(e.store.ctx, publishPause)
			}
			e.mark(dirty)
		case <-poll.C:
			if e.store.untested() != nil || e.store.refused() != nil {
				continue
			}
			switch {
			case !e.isWatched():
			case i%completeEvery == 0:
				err = e.complete(e.store.ctx)
			default: // only reads batches of other nodes
				_, err = e.publish(e.store.ctx, nil)
			}
			e.removeIdle(e.store.ctx, false)
		}
		if err != nil && e.store.ctx.Err() == nil {
			e.errors.Do(func() { e.store.log.Warn("cannot publish events; trying again", "error", err) })
			_ = retry.Sleep(e.store.ctx, eventPoll)
			e.wake()
		}
	}
}

// own returns the openings of this process, by repository. With dirty, only those are returned that have records to be
// published, and they are not dirty any more.
func (e *events) own(dirty bool) map[string]opening {
	e.mu.Lock()
	defer e.mu.Unlock()
	own := make(map[string]opening)
	for id, o := range e.open {
		select {
		case <-o.ready:
			if o.err == nil && (!dirty || e.dirty[id]) {
				own[id] = o.opening
				delete(e.dirty, id)
			}
		default:
		}
	}
	return own
}

// mark makes repositories dirty again.
func (e *events) mark(repositories map[string]opening) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id := range repositories {
		e.dirty[id] = true
	}
}

// isWatched reports whether a reader has waited for events recently.
func (e *events) isWatched() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Since(e.asked) < time.Minute
}

// Changed implements event.Log.
func (e *events) Changed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = time.Now()
	return e.changed
}

// complete publishes all events of records that exist now, also those of other nodes. It removes openings that a lost
// node has left. It skips damaged repositories. Concurrent callers share the work.
func (e *events) complete(ctx context.Context) error {
	run, _ := e.completing.start(&e.store.running, func() (struct{}, error) {
		return struct{}{}, e.completeOnce(e.store.ctx)
	})
	_, err := run.wait(ctx)
	return err
}

func (e *events) completeOnce(ctx context.Context) error {
	found, lost, err := e.list(ctx, openPrefix)
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.seen = found
	e.mu.Unlock()
	open := e.own(false)
	for key, o := range found {
		id, _, _ := strings.Cut(strings.TrimPrefix(key, openPrefix), "/")
		if other, ok := open[id]; ok {
			o = o.earlier(other)
		}
		open[id] = o
	}
	skipped, err := e.publish(ctx, open)
	lost = slices.DeleteFunc(lost, func(key string) bool {
		id, _, _ := strings.Cut(strings.TrimPrefix(key, openPrefix), "/")
		return skipped[id]
	})
	if err != nil || len(lost) == 0 {
		return err
	}
	return e.store.bucket.Delete(ctx, lost...)
}

// publish appends batches with the events of some repositories that the log does not have. It skips repositories that
// cannot be read, although the bucket works.
func (e *events) publish(ctx context.Context, open map[string]opening) (skipped map[string]bool, err error) {
	select {
	case e.publishing <- struct{}{}:
		defer func() { <-e.publishing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	skipped = make(map[string]bool)
	before := e.log.head()
	defer func() {
		if e.log.head() == before {
			return
		}
		e.mu.Lock()
		close(e.changed)
		e.changed = make(chan struct{})
		e.mu.Unlock()
	}()
	for {
		if err := e.log.refresh(ctx); err != nil {
			return nil, err
		}
		missing, err := e.gather(ctx, open, skipped)
		if err != nil || len(missing) == 0 {
			return skipped, err
		}
		slices.SortStableFunc(missing, func(x, y event.Event) int { return x.Time.Compare(y.Time) })
		if err := e.log.append(ctx, missing); err != nil {
			return nil, err
		}
		for i := range missing {
			e.store.metrics.events.WithLabelValues(string(missing[i].Kind)).Inc()
		}
	}
}

// gather returns the events of repositories that the log does not have, as many as a batch should have. It adds those
// that cannot be read to skipped.
func (e *events) gather(ctx context.Context, open map[string]opening, skipped map[string]bool) (missing []event.Event,
	err error) {
	for _, o := range open {
		if err := e.log.cover(ctx, o.Batch); err != nil {
			return nil, err
		}
	}
	var mu sync.Mutex
	size := 0
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(listParallel)
	for id, o := range open {
		mu.Lock()
		isSkipped, isFull := skipped[id], size > maxEventBatch
		mu.Unlock()
		if isFull { // the next batch has the others
			break
		}
		if isSkipped {
			continue
		}
		group.Go(func() error {
			list, n, err := e.missing(ctx, id, max(o.From, e.log.last(id)))
			mu.Lock()
			defer mu.Unlock()
			if isOfRepository(err) {
				skipped[id] = true
				e.errors.Do(func() {
					e.store.log.Error("cannot read the events of a repository", "repository_id", id, "error", err)
				})
				return nil
			}
			if err == nil && size <= maxEventBatch {
				missing, size = append(missing, list...), size+n
			}
			return err
		})
	}
	err = group.Wait()
	return missing, err
}

// removeIdle removes openings of this process that are not used, if the log has the events of their repositories. With
// all, they need not be old.
func (e *events) removeIdle(ctx context.Context, all bool) {
	open, keys := make(map[string]opening), make(map[string]string)
	e.mu.Lock()
	for id, o := range e.open {
		select {
		case <-o.ready:
		default:
			continue
		}
		if o.users == 0 && (all || time.Since(o.used) > openIdle || time.Since(o.made) > openAge) {
			open[id], keys[id] = o.opening, o.key
			delete(e.open, id) // a later record makes another one
		}
	}
	e.mu.Unlock()
	if len(open) == 0 {
		return
	}
	skipped, err := e.publish(ctx, open)
	maps.DeleteFunc(keys, func(id, _ string) bool { return skipped[id] })
	if err == nil && len(keys) > 0 {
		err = e.store.bucket.Delete(ctx, slices.Collect(maps.Values(keys))...)
	}
	if err != nil && e.store.ctx.Err() == nil {
		e.store.log.Info("cannot remove objects of the event log; another node removes them after a day", "error", err)
	}
}

// close publishes the last events of this process.
func (e *events) close() {
	ctx, cancel := context.WithTimeout(context.Background(), eventTimeout/6)
	defer cancel()
	e.removeIdle(ctx, true)
}
