// Package app measures application servers with requests at random times.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// options are the flags of `packhorse-bench app`.
type options struct {
	rate     float64
	arrivals string
	seed     uint64
	count    int
	duration time.Duration
	clients  int
	keep     bool
	timeout  time.Duration
	paths    []string
	workers  int
	service  time.Duration
	turns    int
	json     bool

	weights []int // of the paths
}

// report is the output of `packhorse-bench app --json` for one server. For several servers the output is {"rows": [...]}
// in the order of the arguments. Times are those of requests with a correct response.
type report struct {
	URL          string               `json:"url"`
	Arrivals     string               `json:"arrivals"` // poisson, constant, or closed
	Rate         float64              `json:"rate"`     // of --rate; 0 in a closed loop
	Seed         uint64               `json:"seed"`
	Requests     int                  `json:"n"` // answered with status 200
	Failures     int                  `json:"failures"`
	RequestsPerS float64              `json:"requests_per_s"`
	Latency      loadgen.LatencyStats `json:"latency_ms"`
	Paths        []pathReport         `json:"paths,omitempty"` // if there is more than one
	// Ideal is the latency of the same arrivals with ideal workers (--ideal).
	Ideal *loadgen.LatencyStats `json:"ideal_ms,omitempty"`
	// Late is the p99 of the delays with which requests were sent. It is zero in a closed loop.
	Late float64 `json:"late_p99_ms"`
	// CPU is the CPU time of the load generator for each request.
	CPU   float64 `json:"own_cpu_ms"`
	Turns int     `json:"turns"`
}

// pathReport is the result of one of several paths.
type pathReport struct {
	Path     string               `json:"path"`
	Requests int                  `json:"n"`
	Failures int                  `json:"failures"`
	Latency  loadgen.LatencyStats `json:"latency_ms"`
}

// Command returns `packhorse-bench app`.
func Command(env loadgen.Env) *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use:   "app URL...",
		Short: "Measure application servers with requests at random times, as users send them",
		Long: `Sends GET requests for the URL at random times, regardless of the server's speed (open loop). The times
between requests are exponential (Poisson), so that some requests arrive together. A request waits while all
workers are busy, which a constant rate hides. The same seed is the same pattern at every rate and for every
server, with the same number of turns.

The latency is the time from when a request was due to the end of its response, even if it was sent later. A
response must be complete and have status 200. Each request has its own connection, as with ab, unless --keep
is given.

With --rate 0 the loop is closed: each client sends the next request as soon as a response is complete.

Several paths at once: --path /work=3 --path /ready=1. They replace the path of the URL.

Several URLs compare servers. The servers get the same requests in turns: --turns 6 sends a sixth to each server,
and then the next sixth. So a change of the machine's speed affects all of them.

With --ideal N the report also has the latency of the same arrivals with N ideal workers. Each request takes
--service and never waits while a worker is free.`,
		Example: `  packhorse-bench app http://127.0.0.1:3000/work --rate 0 --duration 5s
  packhorse-bench app http://127.0.0.1:3000/work --rate 27 --count 1000 --ideal 2 --service 36ms
  packhorse-bench app http://127.0.0.1:3000/work http://127.0.0.1:3001/work --rate 27 --count 600 --turns 6
  packhorse-bench app http://127.0.0.1:3000 --rate 40 --path /work=1 --path /ready=4 --json`,
		Args: cobra.RangeArgs(1, maxServers),
	}
	f := cmd.Flags()
	f.Float64Var(&o.rate, "rate", 0, "requests per second; 0: closed loop")
	f.StringVar(&o.arrivals, "arrivals", "poisson", "poisson or constant")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the arrivals and of the choice of paths")
	f.IntVar(&o.count, "count", 0, "end after this many requests; 0: after the duration")
	f.DurationVar(&o.duration, "duration", 10*time.Second, "how long the run starts requests, without --count")
	f.IntVar(&o.clients, "clients", 0, "maximum number of connections; 0: 1 in a closed loop, else 512")
	f.BoolVar(&o.keep, "keep", false, "keep connections for later requests")
	f.DurationVar(&o.timeout, "timeout", time.Minute, "timeout of a response")
	f.StringArrayVar(&o.paths, "path", nil, "PATH or PATH=WEIGHT, instead of the URL's; may be repeated")
	f.IntVar(&o.workers, "ideal", 0, "compare with this number of ideal workers")
	f.DurationVar(&o.service, "service", 0, "time of an ideal worker for one request")
	f.IntVar(&o.turns, "turns", 1, "number of parts in which each server gets its requests")
	f.BoolVar(&o.json, "json", false, "print one JSON object; for several servers, an array \"rows\" of such objects")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		servers, err := o.servers(args)
		if err != nil {
			return err
		}
		return loadgen.Interrupted(cmd.Context(), o.run(cmd.Context(), env, servers))
	}
	return cmd
}

const (
	maxCount   = 10_000_000 // of all servers; limits memory, about 40 bytes for each request
	maxServers = 100
	maxTurns   = 1000
	minTurn    = 10 * time.Millisecond
)

// server is one of the servers, with the joint results of its turns.
type server struct {
	target   *loadgen.Target
	paths    []string
	requests [][]byte // as paths

	latency  []loadgen.Samples // by path
	failed   []int             // by path
	late     loadgen.Samples
	failures loadgen.Failures
	elapsed  time.Duration
	ideal    loadgen.Samples
	cpu      time.Duration // of the generator
}

// servers checks the flags.
func (o *options) servers(urls []string) ([]*server, error) {
	if o.clients == 0 {
		o.clients = 1
		if o.rate > 0 {
			o.clients = 512
		}
	}
	switch {
	case !(o.rate >= 0) || o.rate > loadgen.MaxRate:
		return nil, fmt.Errorf("--rate %v: from 0 to %d", o.rate, loadgen.MaxRate)
	case o.arrivals != "poisson" && o.arrivals != "constant":
		return nil, fmt.Errorf("--arrivals %q: want poisson or constant", o.arrivals)
	case o.clients < 0 || o.clients > loadgen.MaxClients:
		return nil, fmt.Errorf("--clients %d: from 1 to %d", o.clients, loadgen.MaxClients)
	case o.count < 0 || o.count > maxCount/len(urls):
		return nil, fmt.Errorf("--count %d: up to %d for %d servers", o.count, maxCount/len(urls), len(urls))
	case o.duration <= 0 || o.timeout <= 0:
		return nil, errors.New("--duration and --timeout must be positive")
	case o.turns < 1 || o.turns > maxTurns || o.count > 0 && o.count < o.turns:
		return nil, fmt.Errorf("--turns %d: from 1 to %d, and no more than --count", o.turns, maxTurns)
	case o.count == 0 && o.duration/time.Duration(o.turns) < minTurn:
		return nil, fmt.Errorf("--duration %v in %d turns: the minimum for a turn is %v", o.duration, o.turns, minTurn)
	case o.workers < 0 || o.workers > 0 && (o.service <= 0 || o.rate == 0):
		return nil, errors.New("--ideal: needs --rate, and a positive --service")
	}
	var paths []string
	for _, p := range o.paths {
		path, weight, err := parseWeighted(p)
		if err != nil {
			return nil, err
		}
		paths, o.weights = append(paths, path), append(o.weights, weight)
	}
	if len(paths) == 0 {
		o.weights = []int{1}
	}
	var servers []*server
	for _, url := range urls {
		t, err := loadgen.ParseTarget(url, false)
		if err != nil {
			return nil, err
		}
		if t.TLS != nil {
			return nil, errors.New("bad URL: want http://, because this command does not measure TLS")
		}
		s := &server{target: t, paths: paths, latency: make([]loadgen.Samples, len(o.weights)),
			failed: make([]int, len(o.weights))}
		if len(paths) == 0 {
			s.paths = []string{max(t.Path, "/")}
		}
		for _, path := range s.paths {
			header := "User-Agent: packhorse-bench\r\nAccept: */*\r\n"
			if !o.keep {
				header += "Connection: close\r\n"
			}
			s.requests = append(s.requests, t.Encode(http.MethodGet, path, header, nil))
		}
		servers = append(servers, s)
	}
	return servers, nil
}

// parseWeighted reads PATH or PATH=WEIGHT.
func parseWeighted(s string) (path string, weight int, err error) {
	path, weight = s, 1
	if i := strings.LastIndexByte(s, '='); i >= 0 {
		path = s[:i]
		weight, err = strconv.Atoi(s[i+1:])
	}
	if err != nil || weight < 1 || weight > 1e6 || !strings.HasPrefix(path, "/") ||
		strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", 0, fmt.Errorf("--path %q: want /PATH or /PATH=WEIGHT, a weight from 1 to a million", s)
	}
	return path, weight, nil
}

// run measures all turns. The speed of a virtual machine changes within minutes by as much as servers differ, and a
// turn takes seconds. Each turn begins with another server.
func (o *options) run(ctx context.Context, env loadgen.Env, servers []*server) error {
	began := time.Now()
	var turn atomic.Int64
	stop := loadgen.Progress(ctx, env.Stderr, func() string {
		return fmt.Sprintf("measuring: %v, turn %d of %d", time.Since(began).Round(time.Second), turn.Load()+1, o.turns)
	})
	defer func() { stop() }()
	for n := range o.turns {
		turn.Store(int64(n))
		for i := range servers {
			s := servers[(i+n)%len(servers)]
			if err := o.turn(ctx, s, n); err != nil {
				return fmt.Errorf("%v: %w", s.target, err)
			}
		}
	}
	stop()
	stop = func() {}
	return o.report(env, servers)
}

// turn sends a part of the requests to a server. All servers get the same requests.
func (o *options) turn(ctx context.Context, s *server, n int) error {
	arrivals := func() *loadgen.Arrivals {
		return loadgen.NewArrivals(o.rate, o.arrivals == "constant", o.seed+uint64(n)<<32, o.weights)
	}
	load := loadgen.Repeat(s.target, nil, nil, o.timeout)
	load.Next = func(i int) []byte { return s.requests[i] }
	load.Conns, load.Close, load.Arrivals = o.clients, !o.keep, arrivals()
	load.Duration = o.duration / time.Duration(o.turns)
	load.Urgent = true // otherwise it waits for a CPU like other processes, which Late shows
	if o.count > 0 {
		load.Count, load.Duration = o.count/o.turns, 0
		if n < o.count%o.turns {
			load.Count++
		}
	}
	cpu := loadgen.OwnCPU()
	out, err := load.Run(ctx)
	if err != nil {
		return err
	}
	s.cpu += loadgen.OwnCPU() - cpu
	for _, a := range out.Answers {
		s.latency[a.Request] = append(s.latency[a.Request], a.Took)
	}
	for i, n := range out.Failed {
		s.failed[i] += n
	}
	s.late = append(s.late, out.Late...)
	s.elapsed += out.Elapsed
	s.failures.Join(out.Failures)
	if o.workers > 0 {
		var due []time.Duration
		for same := arrivals(); len(due) < len(out.Answers)+out.Failures.Count(); {
			due = append(due, same.Next().Due)
		}
		s.ideal = append(s.ideal, ideal(due, o.workers, o.service)...)
	}
	return nil
}

// ideal returns the latencies of the same arrivals with ideal workers. Each worker serves one request at a time, in the
// service time, and each request takes the first free worker. If all requests are alike, no scheduler without knowledge
// of the future is faster.
func ideal(due []time.Duration, workers int, service time.Duration) loadgen.Samples {
	ends := make([]time.Duration, workers) // of the last requests, one for each worker; all take the same time
	took := make(loadgen.Samples, 0, len(due))
	for i, at := range due {
		end := &ends[i%workers] // the first free worker is the one that was taken the longest time ago
		*end = max(at, *end) + service
		took = append(took, *end-at)
	}
	return took
}

// report prints the results and the failures.
func (o *options) report(env loadgen.Env, servers []*server) error {
	var all loadgen.Failures
	var rows []*report
	for _, s := range servers {
		r := o.summarize(s)
		if r.Requests+r.Failures == 0 {
			return errors.New("no request was due in this time: raise --duration, --rate or --count")
		}
		if len(servers) > 1 && r.Failures > 0 {
			fmt.Fprintf(env.Stderr, "%s:\n", r.URL)
		}
		s.failures.Print(env.Stderr)
		all.Join(&s.failures)
		rows = append(rows, r)
	}
	var err error
	switch {
	case !o.json:
		for _, r := range rows {
			r.print(env.Stdout)
		}
	case len(rows) == 1:
		err = loadgen.WriteJSON(env.Stdout, rows[0])
	default:
		err = loadgen.WriteJSON(env.Stdout, map[string]any{"rows": rows})
	}
	return errors.Join(err, all.Err())
}

// summarize returns the report of a server.
func (o *options) summarize(s *server) *report {
	all := slices.Concat(s.latency...)
	r := &report{URL: s.target.String(), Arrivals: "closed", Rate: o.rate, Seed: o.seed, Requests: len(all),
		Failures: s.failures.Count(), Latency: all.Stats(), Turns: o.turns,
		RequestsPerS: loadgen.Round(loadgen.Rate(float64(len(all)), 1, s.elapsed), 2)}
	if o.rate > 0 {
		r.Arrivals, r.Late = o.arrivals, s.late.Summarize().P99
	}
	for i, path := range s.paths {
		if len(s.paths) > 1 {
			r.Paths = append(r.Paths, pathReport{path, len(s.latency[i]), s.failed[i], s.latency[i].Stats()})
		}
	}
	r.CPU = loadgen.Milliseconds(s.cpu / time.Duration(max(r.Requests+r.Failures, 1)))
	if o.workers > 0 {
		r.Ideal = new(s.ideal.Stats())
	}
	return r
}

func (r *report) print(w io.Writer) {
	if r.Rate > 0 {
		fmt.Fprintf(w, "%s: %s arrivals, %g requests a second\n", r.URL, r.Arrivals, r.Rate)
	} else {
		fmt.Fprintf(w, "%s: closed loop\n", r.URL)
	}
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %-12s "+format+"\n", append([]any{name}, args...)...)
	}
	line("requests", "%d (%.2f/s), %d failed", r.Requests, r.RequestsPerS, r.Failures)
	line("latency", "%v", r.Latency)
	for _, p := range r.Paths {
		line("  "+p.Path, "%v  n %d, %d failed", p.Latency, p.Requests, p.Failures)
	}
	if r.Ideal != nil {
		line("at best", "%v", *r.Ideal)
	}
	line("generator", "%.3f ms CPU for each request, p99 of the delay of sending %.3f ms", r.CPU, r.Late)
}
