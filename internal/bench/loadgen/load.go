package loadgen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Load sends requests on several connections, and checks every response. Each connection has a goroutine. In a closed
// loop it sends the next request as soon as a response is complete.
type Load struct {
	Target   *Target
	Conns    int           // maximum number of connections
	Arrivals *Arrivals     // the times of an open loop, and the choice of requests; nil: a closed loop of one request
	Count    int           // requests in all; 0: no limit
	Duration time.Duration // no request is due after it; 0: no limit
	Timeout  time.Duration // maximum time without a byte
	Connect  bool          // make all connections before the start
	Close    bool          // each request has its own connection
	Pace     float64       // bytes per second of each connection; 0: no limit
	Urgent   bool          // run this process at a higher priority, if that is permitted

	// Next returns the request with an index, or nil at the end of the run. Goroutines call it concurrently.
	Next func(index int) []byte
	// Check reads one response to its end. After an *HTTPError the connection is used again. Goroutines call it
	// concurrently, each with its own body.
	Check func(b *Body) error
}

const (
	// RetryAfter is the pause of a client after a failed request. A failure is cheap, and a loop of failures would be a
	// load itself.
	RetryAfter = 100 * time.Millisecond

	// ProbeRate is the rate of small requests beside a load, in requests per second. It is enough for a p99 in half a
	// minute, and too low to be a load itself.
	ProbeRate = 50
	// ProbeConns is the number of connections of small requests. A late response does not delay the next request.
	ProbeConns = 16

	// LoadNice is the priority of a load, and UrgentNice that of the small requests beside it. In practice clients run
	// on other machines. Here they share the CPUs with the server, and without priorities a small request waits for the
	// receivers of the clones. Measured on two CPUs with a plain sendfile server and 30 clones at full speed, always at
	// 8 to 9 GB/s. The p50 is 10 ms with clones in the same process, 9 ms with clones in a child process, and 4 ms with
	// a child at nice 5.
	LoadNice, UrgentNice = 5, -5
)

// Answer is one correct response.
type Answer struct {
	Request     int           // index of the request
	Due         time.Duration // after the start; in a closed loop the time when it was sent
	First, Took time.Duration // from due to the first byte of the body, and to the end of the response
}

// Outcome is the result of a load.
type Outcome struct {
	Answers  []Answer    // in no order
	Late     Samples     // delays of sending of an open loop
	Failed   map[int]int // failed requests, by index
	Failures *Failures
	Bytes    int64 // of responses, including their heads
	Elapsed  time.Duration
	Urgent   bool // the higher priority was permitted
}

// Latency returns the times to the end of the responses.
func (o *Outcome) Latency() (s Samples) {
	for _, a := range o.Answers {
		s = append(s, a.Took)
	}
	return s
}

// TTFB returns the times to the first byte of the bodies.
func (o *Outcome) TTFB() (s Samples) {
	for _, a := range o.Answers {
		s = append(s, a.First)
	}
	return s
}

// loadRun is one run of a load.
type loadRun struct {
	*Load
	start    time.Time
	received atomic.Int64

	mu      sync.Mutex // guards the fields below, and Arrivals
	out     *Outcome
	begun   int
	over    bool      // no further request is due
	clients []*client // all connections
	idle    []*client // connections of an open loop without a request, the last used one at the end
	queue   []Arrival // requests that are due and wait for a connection
}

// client is one connection with its goroutine.
type client struct {
	run   *loadRun
	conn  *Conn // nil: not connected
	pace  *pace
	due   chan Arrival // wakes an idle connection; closed at the end of the run
	took  []Answer
	late  Samples
	first time.Time // of the current response
}

// Run sends until the count or the duration is reached and all responses have arrived. If the context ends before, it
// aborts the running requests. Their bytes count, and they are neither answers nor failures.
func (l *Load) Run(ctx context.Context) (*Outcome, error) {
	if l.Arrivals == nil {
		l.Arrivals = FixedRate(0)
	}
	r := &loadRun{Load: l, out: &Outcome{Failed: map[int]int{}, Failures: &Failures{}}, start: time.Now()}
	if l.Connect {
		for range l.Conns {
			c := r.newClient()
			defer c.close()
			if err := c.connect(ctx); err != nil {
				return r.out, err
			}
		}
	}
	if l.Urgent {
		if r.out.Urgent = ProcessNice(UrgentNice); r.out.Urgent {
			defer ProcessNice(0)
		}
	}
	r.start = time.Now()
	var running sync.WaitGroup
	if l.Arrivals.closed {
		for len(r.clients) < l.Conns {
			r.newClient()
		}
		for _, c := range r.clients {
			running.Go(func() {
				if a, ok := c.next(); ok {
					c.work(ctx, a)
				}
			})
		}
	} else {
		r.idle = append(r.idle, r.clients...)
		for _, c := range r.clients {
			running.Go(func() {
				if a, ok := <-c.due; ok {
					c.work(ctx, a)
				}
			})
		}
		r.dispatch(ctx, &running)
	}
	running.Wait()
	r.out.Elapsed = time.Since(r.start)
	for _, c := range r.clients {
		r.out.Answers, r.out.Late = append(r.out.Answers, c.took...), append(r.out.Late, c.late...)
	}
	r.out.Bytes = r.received.Load()
	return r.out, ctx.Err()
}

func (r *loadRun) newClient() *client {
	c := &client{run: r, due: make(chan Arrival, 1)}
	if r.Pace > 0 {
		c.pace = newPace(r.Pace, r.start)
	}
	r.clients = append(r.clients, c)
	return c
}

// begin returns the next request. It returns false at the end of the run.
func (r *loadRun) begin() (Arrival, bool) {
	a := r.Arrivals.Next()
	if r.Arrivals.closed {
		a.Due = time.Since(r.start)
	}
	if r.Count > 0 && r.begun >= r.Count || r.Duration > 0 && a.Due >= r.Duration {
		return a, false
	}
	r.begun++
	return a, true
}

// dispatch gives each request of an open loop to a connection when it is due.
func (r *loadRun) dispatch(ctx context.Context, running *sync.WaitGroup) {
	for {
		a, ok := r.begin()
		if !ok || !sleepUntil(ctx, r.start.Add(a.Due)) {
			break
		}
		r.mu.Lock()
		switch last := len(r.idle) - 1; {
		case last >= 0:
			r.idle[last].due <- a
			r.idle = r.idle[:last]
		case len(r.clients) < r.Conns:
			c := r.newClient()
			running.Go(func() { c.work(ctx, a) })
		default:
			r.queue = append(r.queue, a)
		}
		r.mu.Unlock()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	for _, c := range r.idle {
		close(c.due)
	}
}

// next returns the next request of a connection. In an open loop it waits for one.
func (c *client) next() (Arrival, bool) {
	r := c.run
	r.mu.Lock()
	switch {
	case r.Arrivals.closed:
		defer r.mu.Unlock()
		return r.begin()
	case len(r.queue) > 0:
		defer r.mu.Unlock()
		a := r.queue[0]
		r.queue = r.queue[1:]
		return a, true
	case r.over:
		r.mu.Unlock()
		return Arrival{}, false
	}
	r.idle = append(r.idle, c)
	r.mu.Unlock()
	a, ok := <-c.due
	return a, ok
}

// work sends requests, the first one at once.
func (c *client) work(ctx context.Context, a Arrival) {
	defer c.close()
	r := c.run
	for ok := true; ok && ctx.Err() == nil; a, ok = c.next() {
		request := r.Next(a.Request)
		if request == nil {
			return
		}
		due := r.start.Add(a.Due)
		if !r.Arrivals.closed {
			c.late = append(c.late, time.Since(due))
		}
		err := c.exchange(ctx, request)
		switch _, complete := errors.AsType[*HTTPError](err); {
		case err == nil:
			c.took = append(c.took, Answer{a.Request, a.Due, c.first.Sub(due), time.Since(due)})
			continue
		case ctx.Err() != nil:
			return
		case !complete:
			c.close()
		}
		r.mu.Lock()
		r.out.Failed[a.Request]++
		r.mu.Unlock()
		r.out.Failures.Add(err)
		Sleep(ctx, RetryAfter)
	}
}

// exchange sends a request and reads its response. If the server has closed a kept connection, it sends the request on
// a new one (RFC 9110, section 9.2.2).
func (c *client) exchange(ctx context.Context, request []byte) error {
	isKept := c.conn != nil
	if err := c.connect(ctx); err != nil {
		return err
	}
	b, err := c.conn.Exchange(request)
	if err != nil && isKept && c.conn.r == c.conn.w && !errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
		c.close()
		return c.exchange(ctx, request)
	}
	if err != nil {
		return err
	}
	err = c.run.Check(b)
	if c.first = b.First; b.Size == 0 {
		c.first = time.Now()
	}
	if c.run.Close || b.Close {
		c.close()
	}
	return err
}

func (c *client) connect(ctx context.Context) (err error) {
	if c.conn != nil {
		return nil
	}
	if c.conn, err = c.run.Target.DialConn(ctx, &c.run.received, c.run.Timeout); err == nil {
		c.conn.pace = c.pace
	}
	return err
}

func (c *client) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// Repeat returns a load of one request. Every response has to have this body. With nil only the status is checked.
func Repeat(t *Target, request, want []byte, timeout time.Duration) *Load {
	return &Load{Target: t, Timeout: timeout, Next: func(int) []byte { return request }, Check: func(b *Body) error {
		body, err := b.All()
		if err == nil && want != nil && !bytes.Equal(body, want) {
			err = &HTTPError{Status: b.Status, Text: fmt.Sprintf("an answer of %d bytes differs from the first one of %d",
				len(body), len(want))}
		}
		return err
	}}
}
