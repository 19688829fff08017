package app

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// appRace is one run of `packhorse-bench app`: servers that get the same requests, in turns. The speed of a virtual
// machine changes within minutes by as much as the servers differ. A turn takes seconds.
type appRace struct {
	appOptions
	servers  []*appServer
	unsteady int // of all servers
}

// appServer is one of the servers, with the joint results of its turns.
type appServer struct {
	load  *appLoad
	out   *appOutcome
	ideal loadgen.Samples
	cpu   time.Duration
	still loadgen.Standstill
	known bool // still is valid

	again, unsteady int // repeated turns, and turns that count in spite of a standstill
}

// appTurn is the result of one turn.
type appTurn struct {
	out   *appOutcome
	cpu   time.Duration // of the generator
	still loadgen.Standstill
	known bool // still is valid
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

// run measures all turns. machine has the arguments of the process that watches for standstills.
func (r *appRace) run(ctx context.Context, env loadgen.Env, machine []string) error {
	began := time.Now()
	var turn atomic.Int64
	stop := loadgen.Progress(ctx, env.Stderr, func() string {
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
				s := r.servers[(i+n)%len(r.servers)] // each turn begins with another server
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

// turn runs the n-th turn of a server.
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

// steady runs a turn, and repeats it if the machine stood still. The try with the shortest standstill counts. A turn
// with failures always counts.
func (r *appRace) steady(s *appServer, turn func() (*appTurn, error)) (best *appTurn, err error) {
	for try := 0; ; try++ {
		t, err := turn()
		if err != nil {
			return nil, err
		}
		if t.out.failures.Count() > 0 {
			return t, nil
		}
		if best == nil || t.still.TotalMS < best.still.TotalMS {
			best = t
		}
		if !t.known || !t.still.Disturbs(t.out.elapsed) {
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

// maxUnsteady is the number of turns for which repetition may fail. After that no turn is repeated, because the machine
// is never quiet.
const maxUnsteady = 3

// prepare assigns a part of the requests to a load. All servers get the same requests.
func (r *appRace) prepare(l *appLoad, n int) {
	l.count, l.duration = 0, r.duration/time.Duration(r.turns)
	if r.count > 0 {
		l.count, l.duration = r.count/r.turns, 0
		if n < r.count%r.turns {
			l.count++
		}
	}
	// A closed loop uses the paths of the arrivals, and ignores their times.
	rate := r.rate
	if !l.open {
		rate = 1
	}
	l.arrivals = loadgen.NewArrivals(rate, r.arrivals == "constant", r.seed+uint64(n)<<32, l.weights)
}

// turn runs once. machine has the arguments of the process that watches for standstills. Each turn has its own process,
// because the process reports when it ends.
func (l *appLoad) turn(ctx context.Context, machine []string) (*appTurn, error) {
	watch := loadgen.WatchStandstills(ctx, machine)
	defer watch.Kill()
	from, cpu := loadgen.Monotonic(), loadgen.OwnCPU()
	out, err := l.run(ctx)
	if err != nil {
		return nil, err
	}
	t := &appTurn{out: out, cpu: loadgen.OwnCPU() - cpu}
	to := loadgen.Monotonic()
	var spans []loadgen.Span
	if spans, t.known = watch.End(); t.known {
		_, t.still = loadgen.Between(spans, from, to)
	}
	return t, nil
}

// add joins a turn to the earlier turns.
func (s *appServer) add(t *appTurn) {
	for i := range s.out.latency {
		s.out.latency[i] = append(s.out.latency[i], t.out.latency[i]...)
		s.out.failed[i] += t.out.failed[i]
	}
	s.out.late = append(s.out.late, t.out.late...)
	s.out.elapsed += t.out.elapsed
	s.out.failures.Join(&t.out.failures)
	s.cpu += t.cpu
	s.still, s.known = s.still.Plus(t.still), s.known && t.known
}

// report prints the results and the failures.
func (r *appRace) report(env loadgen.Env) error {
	var all loadgen.Failures
	rows := make([]*appReport, len(r.servers))
	for i, s := range r.servers {
		rows[i] = r.appOptions.report(s)
		if rows[i].Requests+rows[i].Failures == 0 {
			return errors.New("no request was due in this time: raise --duration, --rate or --count")
		}
		if len(rows) > 1 && s.out.failures.Count() > 0 {
			fmt.Fprintf(env.Stderr, "%s:\n", rows[i].URL)
		}
		s.out.failures.Print(env.Stderr)
		all.Join(&s.out.failures)
	}
	var err error
	switch {
	case !r.json:
		for _, row := range rows {
			row.print(env.Stdout)
		}
	case len(rows) == 1:
		err = loadgen.WriteJSON(env.Stdout, rows[0])
	default:
		err = loadgen.WriteJSON(env.Stdout, map[string]any{"rows": rows})
	}
	return errors.Join(err, all.Err())
}
