package loadgen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// Sender sends small requests at the times when they are due, and measures the responses. All open loops of small
// requests use it. In a closed loop each connection sends the next request as soon as a response is complete.
//
// On Linux without TLS, one thread drives all connections with ppoll(2). Its timers are exact and a request needs no
// allocation. With a trivial server on the same two CPUs it sends 40,000 requests per second on 8 connections
// (goroutines: 28,000). In an open loop at 50 requests per second its p50 is 0.36 ms (goroutines: 1.0 ms, mostly
// because of late timers). In other cases each connection has a goroutine.
type Sender struct {
	Target   *Target
	Requests [][]byte  // chosen by Arrivals
	Arrivals *Arrivals // the times of an open loop; a closed loop only chooses requests
	Open     bool
	Conns    int           // maximum number of connections
	Connect  bool          // make all connections before the start
	Keep     bool          // use connections for several requests
	Count    int           // requests in all; 0: until Duration
	Duration time.Duration // no request starts after it; 0: until Count
	Timeout  time.Duration // for each response
	Pause    time.Duration // pause of a connection after a failure
	Urgent   bool          // run at a higher priority, if that is permitted

	// Check returns an error for a wrong response. Calls do not overlap. They run on the sending thread and delay it. An
	// *HTTPError leaves the connection usable.
	Check func(x *Exchange) error
}

// Answer is one correct response.
type Answer struct {
	Request int           // index of the request
	Due     time.Duration // after the start; in a closed loop the time when it was sent
	Took    time.Duration // from due to the end of the response
}

// Sent is the result of a Sender.
type Sent struct {
	Answers  []Answer
	Dues     []time.Duration // of all requests of an open loop, including failed ones
	Late     Samples         // delays of sending
	Failed   []int           // by index of the request
	Failures *Failures
	Bytes    int64 // of responses, including their heads
	Elapsed  time.Duration
	Urgent   bool // the higher priority was permitted
}

// Run sends until the count or the duration is reached and all responses have arrived, or until ctx ends.
func (s *Sender) Run(ctx context.Context) (*Sent, error) {
	out := &Sent{Failed: make([]int, len(s.Requests)), Failures: &Failures{}}
	err := s.run(ctx, out)
	return out, err
}

// more reports whether a request at the given time belongs to the run.
func (s *Sender) more(begun int, at time.Duration) bool {
	return (s.Count == 0 || begun < s.Count) && (s.Duration == 0 || at < s.Duration)
}

// goroutines is the portable form of run, with one goroutine for each connection. It raises the priority of the whole
// process, because a goroutine runs on any of its threads.
func (s *Sender) goroutines(ctx context.Context, out *Sent) error {
	run := &senderRun{Sender: s, out: out}
	workers := make([]*senderConn, s.Conns)
	for i := range workers {
		w := &senderConn{run: run}
		workers[i] = w
		defer w.close()
		if s.Connect {
			if err := w.connect(ctx); err != nil {
				return err
			}
		}
	}
	if s.Urgent {
		if out.Urgent = ProcessNice(UrgentNice); out.Urgent {
			defer ProcessNice(0)
		}
	}
	run.start = time.Now()
	var wg sync.WaitGroup
	for _, w := range workers {
		wg.Go(func() { w.work(ctx) })
	}
	wg.Wait()
	out.Elapsed = time.Since(run.start)
	return ctx.Err()
}

// senderRun is one run with goroutines.
type senderRun struct {
	*Sender
	start    time.Time
	checking sync.Mutex // held by calls of Check

	mu    sync.Mutex // guards the fields below, and Arrivals
	begun int
	out   *Sent
}

// next returns the next request. It returns false at the end of the run.
func (r *senderRun) next() (Arrival, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := Arrival{Due: time.Since(r.start)}
	if r.Open {
		a = r.Arrivals.Next()
	} else {
		a.Request = r.Arrivals.Pick()
	}
	if !r.more(r.begun, a.Due) {
		return a, false
	}
	r.begun++
	if r.Open {
		r.out.Dues = append(r.out.Dues, a.Due)
	}
	return a, true
}

// senderConn is one connection with its goroutine.
type senderConn struct {
	run     *senderRun
	c       net.Conn
	release func() bool // detaches the connection from the context
	x       Exchange
	used    bool
}

// work sends requests when they are due.
func (w *senderConn) work(ctx context.Context) {
	r := w.run
	for ctx.Err() == nil {
		a, ok := r.next()
		if !ok || !Sleep(ctx, time.Until(r.start.Add(a.Due))) {
			return
		}
		late := time.Since(r.start) - a.Due
		err := w.once(ctx, r.Requests[a.Request])
		took := time.Since(r.start) - a.Due
		if err != nil && ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		if r.Open {
			r.out.Late = append(r.out.Late, late)
		}
		if err != nil {
			r.out.Failures.Add(err)
			r.out.Failed[a.Request]++
		} else {
			r.out.Answers = append(r.out.Answers, Answer{a.Request, a.Due, took})
			r.out.Bytes += int64(w.x.n)
		}
		r.mu.Unlock()
		_, whole := errors.AsType[*HTTPError](err)
		if err != nil && !whole || !r.Keep || w.x.Head.Close {
			w.close()
		}
		if err != nil {
			Sleep(ctx, r.Pause)
		}
	}
}

func (w *senderConn) close() {
	if w.c != nil {
		w.release()
		w.c.Close()
		w.c = nil
	}
}

func (w *senderConn) connect(ctx context.Context) error {
	if w.c != nil {
		return nil
	}
	c, err := w.run.Target.dial(ctx)
	if err != nil {
		return err
	}
	w.c, w.used = c, false
	w.release = context.AfterFunc(ctx, func() { c.Close() })
	return nil
}

// once sends a request and waits for its complete response. If the server has closed a kept connection, once sends the
// request on a new one (RFC 9110, section 9.2.2).
func (w *senderConn) once(ctx context.Context, request []byte) error {
	for {
		if err := w.connect(ctx); err != nil {
			return err
		}
		used := w.used
		err := w.exchange(request)
		if err == nil {
			w.used = true
			w.run.checking.Lock()
			defer w.run.checking.Unlock()
			return w.run.Check(&w.x)
		}
		if !used || w.x.n > 0 || ctx.Err() != nil {
			return err
		}
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			return err
		}
		w.close()
	}
}

func (w *senderConn) exchange(request []byte) error {
	w.x.begin()
	w.c.SetDeadline(time.Now().Add(w.run.Timeout)) //nolint:errcheck // the next call fails too
	if _, err := w.c.Write(request); err != nil {
		return err
	}
	for {
		n, err := w.c.Read(w.x.space())
		if n > 0 {
			if done, bad := w.x.took(n); done || bad != nil {
				return bad
			}
		}
		if err == io.EOF {
			return w.x.ended()
		}
		if err != nil {
			return err
		}
	}
}

// resolve looks up the target's host and returns the address for all connections, an IPv4 address if there is one.
func (s *Sender) resolve(ctx context.Context) (net.Addr, error) {
	if s.Target.Socket != "" {
		return &net.UnixAddr{Name: s.Target.Socket, Net: "unix"}, nil
	}
	host, port, err := net.SplitHostPort(s.Target.Addr)
	if err != nil {
		return nil, err
	}
	number, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err != nil {
		return nil, err
	}
	ips, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("looking up the host: %w", err)
	}
	ip := ips[max(slices.IndexFunc(ips, func(ip net.IPAddr) bool { return ip.IP.To4() != nil }), 0)]
	return &net.TCPAddr{IP: ip.IP, Port: number, Zone: ip.Zone}, nil
}
