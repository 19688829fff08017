package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

const (
	batchPrefix = eventsPrefix + "log/" // DOWN(n)
	maxBatches  = 64                    // in memory
	maxPage     = 4 << 20               // bytes of a page of events, roughly
	staleHead   = time.Hour             // after which the number of the latest batch is looked up in a listing
)

// eventBatch is an object of the event log.
type eventBatch struct {
	Number uint64        `json:"n"`
	Txn    string        `json:"txn"`
	At     time.Time     `json:"at"`
	Node   string        `json:"node"` // for people
	Events []event.Event `json:"events"`
}

// eventLog is the numbered log of events. It is safe for concurrent use, except that one goroutine at a time calls
// refresh, cover and append.
type eventLog struct {
	bucket bucket.Bucket
	node   string
	id     string // of the store
	// maxLarge is maxLargeEvents, except in tests.
	maxLarge int64

	mu        sync.Mutex
	number    uint64            // of the latest known batch
	isKnown   bool              // number is valid
	checked   time.Time         // when it was the latest
	low       uint64            // published covers the batches after this one
	published map[string]uint64 // by repository, the last record whose events the log has
	cache     []*eventBatch
}

func (l *eventLog) key(n uint64) string { return batchPrefix + replog.Down(n) }

func (l *eventLog) head() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.number
}

// known returns the number of a batch that was the latest one at some time.
func (l *eventLog) known(ctx context.Context) (uint64, error) { return l.find(ctx, false) }

// find is known. With again, it lists the batches also if a number is known that may be old: batches after it may have
// been removed.
func (l *eventLog) find(ctx context.Context, again bool) (uint64, error) {
	l.mu.Lock()
	known, isKnown := l.number, l.isKnown && (!again || time.Since(l.checked) < staleHead)
	l.mu.Unlock()
	if isKnown {
		return known, nil
	}
	list, err := l.bucket.List(ctx, batchPrefix, "", 1)
	if err != nil {
		return 0, err
	}
	number := uint64(0)
	if len(list) > 0 {
		var ok bool
		if number, ok = replog.ParseDown(strings.TrimPrefix(list[0].Key, batchPrefix)); !ok {
			return 0, fault.New(fault.Corrupt, "object %s: not a batch of the event log: remove it", list[0].Key)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if again && number >= l.number || !l.isKnown {
		l.number, l.low, l.isKnown, l.checked = number, number, true, time.Now()
		clear(l.published)
	}
	return l.number, nil
}

// refresh reads the batches after the latest known one.
func (l *eventLog) refresh(ctx context.Context) error {
	number, err := l.find(ctx, true)
	for count := uint64(1); err == nil; count = min(2*count, maxBatches) {
		var end uint64
		if end, err = l.noteAll(ctx, number+1, number+count); err != nil {
			break
		}
		isEnd := end <= number+count
		number = end - 1
		l.mu.Lock()
		l.number = number
		if isEnd {
			l.checked = time.Now()
		}
		l.mu.Unlock()
		if isEnd {
			return nil
		}
	}
	return err
}

// noteAll takes note of the events of some batches, in parallel. end is the first one that does not exist, or to+1.
func (l *eventLog) noteAll(ctx context.Context, from, to uint64) (end uint64, err error) {
	end = to + 1
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(listParallel)
	for n := from; n <= to; n++ {
		group.Go(func() error {
			b, err := l.get(ctx, n)
			l.mu.Lock()
			defer l.mu.Unlock()
			if errors.Is(err, bucket.ErrNotFound) {
				end = min(end, n)
				return nil
			}
			if err == nil {
				l.note(b)
			}
			return err
		})
	}
	err = group.Wait()
	return end, err
}

// add takes note of the batch after the latest known one.
func (l *eventLog) add(b *eventBatch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.number = b.Number
	l.note(b)
}

func (l *eventLog) note(b *eventBatch) {
	for i := range b.Events {
		id := b.Events[i].Incarnation
		l.published[id] = max(l.published[id], b.Events[i].Record)
	}
}

// cover makes published cover the batches after one.
func (l *eventLog) cover(ctx context.Context, batch uint64) error {
	for {
		l.mu.Lock()
		low := l.low
		l.mu.Unlock()
		if low <= batch {
			return nil
		}
		next := max(batch, low-min(low, maxBatches))
		if _, err := l.noteAll(ctx, next+1, low); err != nil { // missing ones were old
			return err
		}
		l.mu.Lock()
		l.low = next
		l.mu.Unlock()
	}
}

// last returns the last record of a repository whose events the covered batches have, or 0.
func (l *eventLog) last(id string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.published[id]
}

// get reads a batch. The error is bucket.ErrNotFound if it does not exist.
func (l *eventLog) get(ctx context.Context, n uint64) (*eventBatch, error) {
	l.mu.Lock()
	i := slices.IndexFunc(l.cache, func(b *eventBatch) bool { return b.Number == n })
	var b *eventBatch
	if i >= 0 {
		b = l.cache[i]
	}
	l.mu.Unlock()
	if b != nil {
		return b, nil
	}
	body, _, err := l.bucket.Get(ctx, l.key(n), 2*l.maxLarge)
	if err != nil {
		return nil, err
	}
	b = &eventBatch{}
	if err := json.Unmarshal(body, b); err != nil || b.Number != n {
		return nil, fault.Wrap(fault.Corrupt, "the event log is damaged",
			fmt.Errorf("object %s: batch %d: %w", l.key(n), b.Number, errors.Join(err)))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(body) < maxPage {
		l.cache = append(l.cache[max(0, len(l.cache)-maxBatches+1):], b)
	}
	return b, nil
}

// append appends a batch, unless another node does so first. If the answer of the bucket is unclear, reading decides.
func (l *eventLog) append(ctx context.Context, list []event.Event) error {
	b := &eventBatch{Number: l.head() + 1, Txn: replog.NewID(), At: time.Now().UTC(), Node: l.node, Events: list}
	body, err := json.Marshal(b)
	if err != nil {
		return err
	}
	if err = l.bucket.Create(ctx, l.key(b.Number), append(body, '\n')); err == nil {
		l.add(b)
		return nil
	}
	made, getErr := l.get(ctx, b.Number)
	if errors.Is(getErr, bucket.ErrNotFound) {
		return err // it can still appear; the next refresh finds it
	}
	if getErr == nil {
		l.add(made)
	}
	return getErr
}

// ReadEvents implements event.Log.Read. A position is the ID of the store, the number of a batch, and how many of its
// events are before the position.
func (e *events) Read(ctx context.Context, after string, limit int) (list []event.Event, next string, err error) {
	l := &e.log
	number, index, err := e.position(ctx, after)
	if err != nil {
		return nil, "", err
	}
	for isComplete, size := false, 0; len(list) < limit && size < maxPage; {
		b, err := l.get(ctx, number)
		switch {
		case errors.Is(err, bucket.ErrNotFound) && number <= l.head():
			return nil, "", e.outOfRange(ctx, after)
		case errors.Is(err, bucket.ErrNotFound) && !isComplete:
			if err := e.complete(ctx); err != nil {
				return nil, "", err
			}
			isComplete = true
			continue
		case errors.Is(err, bucket.ErrNotFound):
			return list, l.at(number, index), nil
		case err != nil:
			return nil, "", err
		}
		for ; index < len(b.Events) && len(list) < limit; index++ {
			found := b.Events[index]
			size += 200 * (1 + len(found.Refs))
			found.Position = l.at(number, index+1)
			if index+1 == len(b.Events) {
				found.Position = l.at(number+1, 0)
			}
			list = append(list, found)
		}
		if index >= len(b.Events) {
			number, index = number+1, 0
		}
	}
	return list, l.at(number, index), nil
}

func (l *eventLog) at(number uint64, index int) string {
	return fmt.Sprintf("%s-%d-%d", l.id, number, index)
}

// position returns the batch and the index of the first event after a position.
func (e *events) position(ctx context.Context, after string) (number uint64, index int, err error) {
	l := &e.log
	switch after {
	case "":
		number, err = l.first(ctx)
		return number, 0, err
	case event.Now:
		if err := e.complete(ctx); err != nil {
			return 0, 0, err
		}
		return l.head() + 1, 0, nil
	}
	at := uint64(0)
	if err := event.ParsePosition(after, l.id, &number, &at); err != nil {
		return 0, 0, err
	}
	head, err := l.known(ctx)
	if err == nil && number > head+1 { // of a batch that this node does not know
		err = e.complete(ctx)
		head = l.head()
	}
	if err == nil && (number == 0 || number > head+1 || at > math.MaxInt32) {
		err = e.outOfRange(ctx, after)
	}
	return number, int(at), err
}

// outOfRange is event.OutOfRange.
func (e *events) outOfRange(ctx context.Context, after string) error {
	first, err := e.log.first(ctx)
	if err != nil {
		return err
	}
	return event.OutOfRange(after, e.log.at(first, 0))
}

// first returns the number of the oldest batch. Older ones were removed in their order.
func (l *eventLog) first(ctx context.Context) (uint64, error) {
	low, err := l.known(ctx)
	if err != nil {
		return 0, err
	}
	low, high := 1, low+1
	for low < high {
		middle := low + (high-low)/2
		_, err := l.get(ctx, middle)
		switch {
		case err == nil:
			high = middle
		case errors.Is(err, bucket.ErrNotFound):
			low = middle + 1
		default:
			return 0, err
		}
	}
	return low, nil
}

// removeOld removes batches and large events that are older than a time.
func (l *eventLog) removeOld(ctx context.Context, before time.Time) error {
	first, err := l.first(ctx)
	if err != nil {
		return err
	}
	var keys []string
	for n := first; n < l.head(); n++ {
		b, err := l.get(ctx, n)
		if err != nil {
			return err
		}
		if !b.At.Before(before) {
			break
		}
		keys = append(keys, l.key(n))
	}
	for part := range slices.Chunk(keys, listPage) {
		if err := l.bucket.Delete(ctx, part...); err != nil {
			return err
		}
	}
	return bucket.Each(ctx, l.bucket, largePrefix, func(info bucket.Info) error {
		if info.Modified.Before(before) {
			return l.bucket.Delete(ctx, info.Key)
		}
		return nil
	})
}
