package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// replay sends bulk requests on many connections, each with one goroutine, and has every answer checked.
type replay struct {
	target   *target
	clients  int
	duration time.Duration // no request begins after it; zero: until stop
	timeout  time.Duration // without a byte
	rate     float64       // requests a second in all, due at fixed times (open loop); zero: one after the other
	pace     float64       // bytes a second of each client; zero: no bound

	// next gives a client's next request, nil if there is none. Called by many goroutines.
	next func() []byte
	// check reads one answer to the end. Called by many goroutines, each with a body of its own.
	check    func(b *body, h head, firstByte func()) error
	refusals bool // refusals that say when to try again are no failures
	// flowing, if not nil, is called once every client has received something.
	flowing func()
}

// retryAfter keeps a client whose request failed from asking again at once: failing is cheap, and a loop of it
// would be a load of its own.
const retryAfter = 100 * time.Millisecond

// outcome is what a load measured.
type outcome struct {
	requests      int // answered and found right
	refused       int
	bytes         int64
	elapsed       time.Duration
	ttfb, latency samples
	began         time.Duration // by the system's monotonic clock; of an open loop, as timed
	timed         []answered    // the same as latency, with when each was due
	failures      *failures
	urgent        bool // the generator had the higher priority that it asked for
}

// client is one connection's state.
type client struct {
	run      *replayRun
	received atomic.Int64
	busy     atomic.Bool // a request is on its way
	stalled  atomic.Bool
	requests int
	ttfb     samples
	latency  samples
	pace     *pace

	mu   sync.Mutex
	conn *conn // guarded by mu for abort; only the client itself sets it
}

// replayRun is one run of a replay.
type replayRun struct {
	*replay
	start    time.Time
	refused  atomic.Int64
	due      atomic.Int64 // requests scheduled so far, in an open loop
	clients  []*client
	failures failures
}

// run works until the duration is over and the last answer is in, or, what comes first, until stop is closed or the context
// ends: then running requests are broken off and count neither as requests nor as errors, but their bytes count.
func (r *replay) run(ctx context.Context, stop <-chan struct{}) (*outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	run := &replayRun{replay: r, start: time.Now()}
	for range r.clients {
		c := &client{run: run}
		if r.pace > 0 {
			c.pace = newPace(r.pace, run.start)
		}
		run.clients = append(run.clients, c)
	}
	release := context.AfterFunc(ctx, func() {
		for _, c := range run.clients {
			c.abort()
		}
	})
	defer release()

	var workers, watchers sync.WaitGroup
	done := make(chan struct{})
	for _, c := range run.clients {
		workers.Go(func() { c.work(ctx) })
	}
	watchers.Go(func() { run.watch(done) })
	if r.flowing != nil {
		watchers.Go(func() { run.waitFlowing(done) })
	}
	var stopped *outcome
	watchers.Go(func() {
		select {
		case <-stop:
			stopped = &outcome{bytes: run.bytes(), elapsed: time.Since(run.start)}
			cancel()
		case <-done:
		}
	})
	workers.Wait()
	elapsed := time.Since(run.start)
	close(done)
	watchers.Wait()

	out := &outcome{bytes: run.bytes(), elapsed: elapsed, refused: int(run.refused.Load()), failures: &run.failures}
	if stopped != nil {
		out.bytes, out.elapsed = stopped.bytes, stopped.elapsed
	} else if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	for _, c := range run.clients {
		out.requests += c.requests
		out.ttfb = append(out.ttfb, c.ttfb...)
		out.latency = append(out.latency, c.latency...)
	}
	return out, nil
}

func (run *replayRun) bytes() int64 {
	var n int64
	for _, c := range run.clients {
		n += c.received.Load()
	}
	return n
}

// watch breaks off requests that bring nothing.
func (run *replayRun) watch(done <-chan struct{}) {
	type seen struct {
		bytes int64
		at    time.Time
	}
	last := make([]seen, len(run.clients))
	tick := time.NewTicker(max(run.timeout/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case now := <-tick.C:
			for i, c := range run.clients {
				n := c.received.Load()
				switch {
				case !c.busy.Load() || n != last[i].bytes || last[i].at.IsZero():
					last[i] = seen{n, now}
				case now.Sub(last[i].at) > run.timeout:
					c.stalled.Store(true)
					c.abort()
				}
			}
		}
	}
}

// waitFlowing polls, a few times a second, whether every client has received something.
func (run *replayRun) waitFlowing(done <-chan struct{}) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		all := true
		for _, c := range run.clients {
			all = all && c.received.Load() > 0
		}
		if all {
			run.flowing()
			return
		}
		select {
		case <-done:
			return
		case <-tick.C:
		}
	}
}

// abort breaks off what the client is doing.
func (c *client) abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		c.conn.abort()
	}
}

func (c *client) setConn(conn *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = conn
}

// work is the client's loop.
func (c *client) work(ctx context.Context) {
	defer c.close()
	for {
		due, ok := c.run.slot(ctx)
		if !ok {
			return
		}
		request := c.run.next()
		if request == nil {
			return
		}
		if due.IsZero() {
			due = time.Now()
		}
		err := c.once(ctx, request, due)
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return
		}
		if c.stalled.Swap(false) {
			err = fmt.Errorf("nothing received for %v: %w", c.run.timeout, err)
		}
		answer, whole := errors.AsType[*httpError](err)
		if whole && c.run.refusals && answer.refusal() {
			c.run.refused.Add(1)
		} else {
			c.run.failures.add(err)
		}
		if !whole {
			c.close()
		}
		if !sleep(ctx, retryAfter) {
			return
		}
	}
}

func (c *client) close() {
	if c.conn != nil {
		c.conn.Close()
		c.setConn(nil)
	}
}

// slot waits for the time of the next request. It is false when there is none any more. In a closed loop the time is zero.
func (run *replayRun) slot(ctx context.Context) (time.Time, bool) {
	if ctx.Err() != nil {
		return time.Time{}, false
	}
	if run.rate <= 0 {
		return time.Time{}, run.duration == 0 || time.Since(run.start) < run.duration
	}
	after := time.Duration(float64(run.due.Add(1)-1) / run.rate * 1e9)
	if run.duration != 0 && after >= run.duration {
		return time.Time{}, false
	}
	due := run.start.Add(after)
	return due, sleep(ctx, time.Until(due))
}

// once sends one request and reads its answer.
func (c *client) once(ctx context.Context, request []byte, due time.Time) error {
	c.busy.Store(true)
	defer c.busy.Store(false)
	if c.conn == nil {
		conn, err := c.run.target.dialConn(ctx, &c.received)
		if err != nil {
			return err
		}
		conn.pace = c.pace
		c.setConn(conn)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	conn := c.conn
	if _, err := conn.Write(request); err != nil {
		return fmt.Errorf("sending the request: %w", err)
	}
	h, err := conn.readHead()
	if err != nil {
		return fmt.Errorf("reading the response's head: %w", err)
	}
	b := conn.body(h)
	var ttfb time.Duration
	if err := c.run.check(b, h, func() { ttfb = time.Since(due) }); err != nil {
		return err
	}
	c.latency = append(c.latency, time.Since(due))
	c.ttfb = append(c.ttfb, ttfb)
	c.requests++
	if h.close {
		c.close()
	}
	return nil
}

// sleep waits; it is false if the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
