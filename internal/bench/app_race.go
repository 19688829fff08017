package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// appRace is one run of `packhorse-bench app`: servers that get the same requests, in turns. What they are compared on changes its speed from one minute to the next where it
// is a virtual machine, by as much as they differ; a turn takes seconds.
type appRace struct {
	appOptions
	servers  []*appServer
	unsteady int // of all servers
}

// appServer is one of the servers, and what its turns measured together.
type appServer struct {
	load  *appLoad
	out   *appOutcome
	ideal samples
	cpu   time.Duration
	still standstill
	known bool // still is

	again, unsteady int // turns that were made again because the machine stood still, and ones that count although it did
}

// appTurn is what one turn measured.
type appTurn struct {
	out   *appOutcome
	cpu   time.Duration // of the generator
	still standstill
	known bool // still is
}

// race checks the flags.
func (o *appOptions) race(urls []string) (*appRace, error) {
	if o.count > maxAppCount/len(urls) {
		return nil, fmt.Errorf("--count %d: up to %d for %d servers", o.count, maxAppCount/len(urls), len(urls))
	}
	r := &appRace{}
	for _, url := range urls {
		l, err := o.load(url)
		if err != nil {
			return nil, err
		}
		r.servers = append(r.servers, &appServer{load: l, out: l.outcome(), known: true})
	}
	r.appOptions = *o
	return r, nil
}

// resolve looks the host's name up, once for all turns.
func (l *appLoad) resolve(ctx context.Context) error {
	host, port, err := net.SplitHostPort(l.target.addr)
	if err != nil {
		return fmt.Errorf("bad URL %v: want http://HOST:PORT/PATH", l.target)
	}
	number, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err != nil {
		return fmt.Errorf("bad URL %v: %w", l.target, err)
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return fmt.Errorf("looking up the host: %w", err)
	}
	ip := ips[max(slices.IndexFunc(ips, func(ip netip.Addr) bool { return ip.Unmap().Is4() }), 0)] // IPv4 first: most servers that are tried by hand listen there
	l.target.addr = netip.AddrPortFrom(ip.Unmap(), uint16(number)).String()
	return nil
}

// run takes the arguments of the process that watches the machine.
func (r *appRace) run(ctx context.Context, env Env, machine []string) error {
	for _, s := range r.servers {
		if err := s.load.resolve(ctx); err != nil {
			return err
		}
	}
	began := time.Now()
	var turn atomic.Int64
	stop := progress(ctx, env.Stderr, func() string {
		text := fmt.Sprintf("measuring: %v", time.Since(began).Round(time.Second))
		if r.turns > 1 {
			text += fmt.Sprintf(", turn %d of %d", turn.Load(), r.turns)
		}
		return text
	})
	err := func() error {
		for n := range r.turns {
			turn.Store(int64(n + 1))
			for i := range r.servers {
				s := r.servers[(i+n)%len(r.servers)] // who comes first has another one before it each time
				if err := r.turn(ctx, s, n, machine); err != nil {
					return fmt.Errorf("%v: %w", s.load.target, err)
				}
			}
		}
		return nil
	}()
	stop()
	if err != nil {
		return err
	}
	return r.report(env)
}

// turn is the n-th of a server.
func (r *appRace) turn(ctx context.Context, s *appServer, n int, machine []string) error {
	t, err := r.steady(s, func() (*appTurn, error) {
		r.prepare(s.load, n)
		return s.load.turn(ctx, machine)
	})
	if err != nil {
		return err
	}
	s.add(t)
	if r.workers > 0 {
		s.ideal = append(s.ideal, ideal(t.out.due, r.workers, r.service)...)
	}
	return nil
}

// steady makes a turn, and makes it again while the machine stands still. The one in which it did least counts; one with failures always does.
func (r *appRace) steady(s *appServer, turn func() (*appTurn, error)) (best *appTurn, err error) {
	for try := 0; ; try++ {
		t, err := turn()
		if err != nil {
			return nil, err
		}
		if t.out.failures.count() > 0 {
			return t, nil
		}
		if best == nil || t.still.TotalMS < best.still.TotalMS {
			best = t
		}
		if !t.known || !t.still.disturbs(t.out.elapsed) {
			return t, nil
		}
		if try == r.again || r.unsteady >= maxUnsteady {
			r.unsteady++
			s.unsteady++
			return best, nil
		}
		s.again++
	}
}

// maxUnsteady is after how many turns that were in vain made again none is any more: a machine that never is quiet is measured as it is.
const maxUnsteady = 3

// disturbs tells whether a turn of that length is better made again: for the time that the machine stands still, and then until the queues are gone, all
// servers are alike.
func (s standstill) disturbs(turn time.Duration) bool {
	return s.LongestMS > 20 || s.TotalMS > max(5, ms(turn)/1000)
}

// prepare gives a load its part of the requests: the same for all servers.
func (r *appRace) prepare(l *appLoad, n int) {
	l.count, l.duration = 0, r.duration/time.Duration(r.turns)
	if r.count > 0 {
		l.count, l.duration = r.count/r.turns, 0
		if n < r.count%r.turns {
			l.count++
		}
	}
	// A closed loop takes paths, but no times, from the arrivals.
	rate := r.rate
	if !l.open {
		rate = 1
	}
	l.arrivals = newArrivals(rate, r.arrivals == "constant", r.seed+uint64(n)<<32, l.weights)
}

// turn runs once. machine is how to start the process that watches the machine: for each turn its own, which says what it saw when it ends.
func (l *appLoad) turn(ctx context.Context, machine []string) (*appTurn, error) {
	watch := watchStandstills(ctx, machine)
	defer watch.kill()
	from, cpu := monotonic(), ownCPU()
	out, err := l.run(ctx)
	if err != nil {
		return nil, err
	}
	t := &appTurn{out: out, cpu: ownCPU() - cpu}
	to := monotonic()
	var spans []span
	if spans, t.known = watch.end(); t.known {
		_, t.still = between(spans, from, to)
	}
	return t, nil
}

// add joins a turn to those before it.
func (s *appServer) add(t *appTurn) {
	for i := range s.out.latency {
		s.out.latency[i] = append(s.out.latency[i], t.out.latency[i]...)
		s.out.failed[i] += t.out.failed[i]
	}
	s.out.late = append(s.out.late, t.out.late...)
	s.out.elapsed += t.out.elapsed
	s.out.failures.join(&t.out.failures)
	s.cpu += t.cpu
	s.still, s.known = s.still.plus(t.still), s.known && t.known
}

// report prints what was measured, and what went wrong.
func (r *appRace) report(env Env) error {
	var all failures
	rows := make([]*appReport, len(r.servers))
	for i, s := range r.servers {
		rows[i] = r.appOptions.report(s)
		if rows[i].Requests+rows[i].Failures == 0 {
			return errors.New("no request was due in this time; give more of it, a higher --rate, or --count")
		}
		if len(rows) > 1 && s.out.failures.count() > 0 {
			fmt.Fprintf(env.Stderr, "%s:\n", rows[i].URL)
		}
		s.out.failures.print(env.Stderr)
		all.join(&s.out.failures)
	}
	var err error
	switch {
	case !r.json:
		for _, row := range rows {
			row.print(env.Stdout)
		}
	case len(rows) == 1:
		err = writeJSON(env.Stdout, rows[0])
	default:
		err = writeJSON(env.Stdout, map[string]any{"rows": rows})
	}
	return errors.Join(err, all.err())
}
