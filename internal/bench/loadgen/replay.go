package loadgen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Replay sends bulk requests on many connections, one goroutine each, and checks every response.
type Replay struct {
	Target   *Target
	Clients  int
	Duration time.Duration // no request starts after it; zero: until stop
	Timeout  time.Duration // maximum time without a byte
	Rate     float64       // requests per second on all connections, due at fixed times (open loop); zero: closed loop
	Pace     float64       // bytes per second of each client; zero: no limit

	// Next returns a client's next request, or nil at the end. Goroutines call it concurrently.
	Next func() []byte
	// Check reads one response to its end. Goroutines call it concurrently, each with its own body.
	Check func(b *Body, h Head, firstByte func()) error
	// Flowing, if not nil, is called once every client has received data.
	Flowing func()
}

// RetryAfter is the pause of a client after a failed request. A failure is cheap, and a loop of failures would be a
// load itself.
const RetryAfter = 100 * time.Millisecond

// Outcome is the result of a load.
type Outcome struct {
	Requests      int // with a correct response
	Bytes         int64
	Elapsed       time.Duration
	TTFB, Latency Samples
	Failures      *Failures
	Urgent        bool // the generator ran at the higher priority
}

// client is the state of one connection.
type client struct {
	run      *replayRun
	received atomic.Int64
	busy     atomic.Bool // a request is in flight
	stalled  atomic.Bool
	requests int
	ttfb     Samples
	latency  Samples
	pace     *pace

	mu   sync.Mutex
	conn *Conn // guarded by mu for abort; only the client itself sets it
}

// replayRun is one run of a replay.
type replayRun struct {
	*Replay
	start    time.Time
	clients  []*client
	failures Failures

	mu       sync.Mutex // guards arrivals
	arrivals *Arrivals
}

// Run works until the duration has passed and the last response has arrived, until stop is closed, or until the context
// ends. In the last two cases it aborts the running requests. Their bytes count, and they are neither requests nor
// errors.
func (r *Replay) Run(ctx context.Context, stop <-chan struct{}) (*Outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	run := &replayRun{Replay: r, start: time.Now(), arrivals: FixedRate(cmp.Or(r.Rate, 1))}
	for range r.Clients {
		c := &client{run: run}
		if r.Pace > 0 {
			c.pace = newPace(r.Pace, run.start)
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
	if r.Flowing != nil {
		watchers.Go(func() { run.waitFlowing(done) })
	}
	var stopped *Outcome
	watchers.Go(func() {
		select {
		case <-stop:
			stopped = &Outcome{Bytes: run.bytes(), Elapsed: time.Since(run.start)}
			cancel()
		case <-done:
		}
	})
	workers.Wait()
	elapsed := time.Since(run.start)
	close(done)
	watchers.Wait()

	out := &Outcome{Bytes: run.bytes(), Elapsed: elapsed, Failures: &run.failures}
	if stopped != nil {
		out.Bytes, out.Elapsed = stopped.Bytes, stopped.Elapsed
	} else if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	for _, c := range run.clients {
		out.Requests += c.requests
		out.TTFB = append(out.TTFB, c.ttfb...)
		out.Latency = append(out.Latency, c.latency...)
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

// watch aborts requests that receive no data for the timeout.
func (run *replayRun) watch(done <-chan struct{}) {
	type seen struct {
		bytes int64
		at    time.Time
	}
	last := make([]seen, len(run.clients))
	tick := time.NewTicker(max(run.Timeout/8, time.Millisecond))
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
				case now.Sub(last[i].at) > run.Timeout:
					c.stalled.Store(true)
					c.abort()
				}
			}
		}
	}
}

// waitFlowing polls until every client has received data.
func (run *replayRun) waitFlowing(done <-chan struct{}) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		all := true
		for _, c := range run.clients {
			all = all && c.received.Load() > 0
		}
		if all {
			run.Flowing()
			return
		}
		select {
		case <-done:
			return
		case <-tick.C:
		}
	}
}

// abort aborts the client's request.
func (c *client) abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		c.conn.Abort()
	}
}

func (c *client) setConn(conn *Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = conn
}

// work is the loop of the client.
func (c *client) work(ctx context.Context) {
	defer c.close()
	for {
		due, ok := c.run.slot(ctx)
		if !ok {
			return
		}
		request := c.run.Next()
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
			err = fmt.Errorf("nothing received for %v: %w", c.run.Timeout, err)
		}
		c.run.failures.Add(err)
		if _, whole := errors.AsType[*HTTPError](err); !whole {
			c.close()
		}
		if !Sleep(ctx, RetryAfter) {
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

// slot waits for the time of the next request and returns it. It returns false at the end of the run. In a closed loop
// the time is zero.
func (run *replayRun) slot(ctx context.Context) (time.Time, bool) {
	if ctx.Err() != nil {
		return time.Time{}, false
	}
	if run.Rate <= 0 {
		return time.Time{}, run.Duration == 0 || time.Since(run.start) < run.Duration
	}
	run.mu.Lock()
	after := run.arrivals.Next().Due
	run.mu.Unlock()
	if run.Duration != 0 && after >= run.Duration {
		return time.Time{}, false
	}
	due := run.start.Add(after)
	return due, Sleep(ctx, time.Until(due))
}

// once sends one request and reads its response.
func (c *client) once(ctx context.Context, request []byte, due time.Time) error {
	c.busy.Store(true)
	defer c.busy.Store(false)
	if c.conn == nil {
		conn, err := c.run.Target.DialConn(ctx, &c.received)
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
	h, err := conn.ReadHead()
	if err != nil {
		return fmt.Errorf("reading the response's head: %w", err)
	}
	b := conn.Body(h)
	var ttfb time.Duration
	if err := c.run.Check(b, h, func() { ttfb = time.Since(due) }); err != nil {
		return err
	}
	c.latency = append(c.latency, time.Since(due))
	c.ttfb = append(c.ttfb, ttfb)
	c.requests++
	if h.Close {
		c.close()
	}
	return nil
}

// Sleep sleeps for d. It returns false if the context ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
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
