package retry

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Answer is an answer with its times. The zero time means at once.
type Answer[V any] struct {
	Value V
	Renew time.Time // from then on it is asked for again
	// Expires is when callers begin to wait for the new answer. Before, it is asked for in the background.
	Expires time.Time
	End     time.Time // until then it is used if there is no new answer
}

// Until returns an answer that is used until a time, and not after it.
func Until[V any](v V, end time.Time) Answer[V] { return Answer[V]{v, end, end, end} }

// Answers has the answers of other servers to the latest questions, in memory only. It is safe for concurrent use.
//
// Equal questions at the same time become one, which continues when the callers leave. A server that gives no answer is
// not asked again for a while, and earlier answers may be used meanwhile.
type Answers[K comparable, V any] struct {
	now   func() time.Time
	retry time.Duration

	mu      sync.Mutex
	known   *simplelru.LRU[K, entry[V]]
	running map[K]*call[V]
	calls   sync.WaitGroup
}

// entry is the latest answer to a question, or a failure.
type entry[V any] struct {
	Answer[V]
	at      time.Time // of the question
	failure error
	again   time.Time // after a failure: it is not asked before
}

// call is a running question.
type call[V any] struct {
	done  chan struct{} // closed when the fields below are valid
	value V
	err   error
}

// NewAnswers returns a cache of at most size answers. After a failure, a question is not asked again for the time
// retry. now is time.Now, except in tests.
func NewAnswers[K comparable, V any](size int, retry time.Duration, now func() time.Time) *Answers[K, V] {
	known, _ := simplelru.NewLRU[K, entry[V]](max(size, 1), nil) // fails only for a size below 1
	return &Answers[K, V]{now: now, retry: retry, known: known, running: make(map[K]*call[V])}
}

// Get returns an answer that does not have to be renewed.
func (c *Answers[K, V]) Get(key K) (v V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, _ := c.known.Get(key)
	return e.Value, c.now().Before(e.Renew)
}

// Ask returns a known answer, or calls ask on a goroutine and waits for it. isStale reports that an earlier answer is
// used because there was no new one. Otherwise the error is that of ask, or of ctx. An error of kind Exhausted is about
// the callers: no earlier answer is used instead of it.
//
// An answer to a question from before since counts as expired.
func (c *Answers[K, V]) Ask(ctx context.Context, key K, since time.Time, ask func() (Answer[V], error)) (v V,
	isStale bool, err error) {
	c.mu.Lock()
	e, _ := c.known.Get(key)
	now := c.now()
	if e.at.Before(since) {
		e.Renew, e.Expires = time.Time{}, time.Time{}
	}
	if now.Before(e.Renew) || now.Before(e.again) {
		c.mu.Unlock()
		return e.result(now, e.failure)
	}
	running := c.running[key]
	if running == nil {
		running = &call[V]{done: make(chan struct{})}
		c.running[key] = running
		c.calls.Go(func() { c.call(key, running, ask) })
	}
	c.mu.Unlock()
	if now.Before(e.Expires) {
		return e.Value, false, nil
	}
	select {
	case <-running.done:
	case <-ctx.Done():
		return v, false, context.Cause(ctx)
	}
	if running.err == nil || fault.Is(running.err, fault.Exhausted) {
		return running.value, false, running.err
	}
	return e.result(c.now(), running.err)
}

// result returns the answer if it can be used at a time, and otherwise the error.
func (e entry[V]) result(now time.Time, err error) (v V, isStale bool, _ error) {
	switch {
	case now.Before(e.Expires):
		return e.Value, false, nil
	case now.Before(e.End):
		return e.Value, true, nil
	}
	return v, false, err
}

func (c *Answers[K, V]) call(key K, running *call[V], ask func() (Answer[V], error)) {
	start := c.now()
	answer, err := ask()
	c.mu.Lock()
	defer c.mu.Unlock()
	running.value, running.err = answer.Value, err
	e, now := entry[V]{Answer: answer, at: start}, c.now()
	if err != nil {
		e, _ = c.known.Peek(key)
		e.failure, e.again = err, now.Add(c.retry)
	}
	if now.Before(e.End) || now.Before(e.again) {
		c.known.Add(key, e)
	}
	delete(c.running, key)
	close(running.done)
}

// Forget removes the answer to a question.
func (c *Answers[K, V]) Forget(key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.Remove(key)
}

// Wait waits for the end of running questions.
func (c *Answers[K, V]) Wait() { c.calls.Wait() }
