package store

import (
	"context"
	"sync"
)

// sharedRun runs a function for all callers that wait for its result. A caller never gets the result of a run that
// began before the call, because that run may have missed a change. So a burst of callers needs at most two runs. The
// zero value is ready to use.
type sharedRun[T any] struct {
	mu      sync.Mutex
	running *run[T] // nil: none
	next    *run[T] // begins when the running one ends; nil: no caller waits for it
}

// run is one call of the function.
type run[T any] struct {
	done  chan struct{} // closed when the following fields are valid
	value T
	err   error
}

// start returns a run that begins after the call, and whether other callers have started it. f runs on a goroutine of
// the group, also if no caller waits any more.
func (j *sharedRun[T]) start(group *sync.WaitGroup, f func() (T, error)) (r *run[T], joined bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.next != nil {
		return j.next, true
	}
	r = &run[T]{done: make(chan struct{})}
	if j.running != nil {
		j.next = r
		return r, false
	}
	j.running = r
	group.Go(func() { j.loop(f) })
	return r, false
}

// loop runs f as long as callers wait.
func (j *sharedRun[T]) loop(f func() (T, error)) {
	for r := j.running; r != nil; {
		r.value, r.err = f()
		j.mu.Lock()
		j.running, j.next = j.next, nil
		next := j.running
		j.mu.Unlock()
		close(r.done)
		r = next
	}
}

// wait waits for the end of the run or of ctx.
func (r *run[T]) wait(ctx context.Context) (T, error) {
	select {
	case <-r.done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
