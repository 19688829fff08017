// Package app measures application servers with requests at random times.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// appOptions are the flags of `packhorse-bench app`.
type appOptions struct {
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
	again    int
	json     bool
}

// appReport is the output of `packhorse-bench app --json` for one server. For several servers the output is {"rows":
// [...]} in the order of the arguments. Times are those of requests with a correct response.
type appReport struct {
	URL          string               `json:"url"`
	Arrivals     string               `json:"arrivals"` // poisson, constant, or closed
	Rate         float64              `json:"rate"`     // of --rate; 0 in a closed loop
	Seed         uint64               `json:"seed"`
	Requests     int                  `json:"n"` // answered with status 200
	Failures     int                  `json:"failures"`
	RequestsPerS float64              `json:"requests_per_s"`
	Latency      loadgen.LatencyStats `json:"latency_ms"`
	Paths        []appPath            `json:"paths,omitempty"` // if there is more than one
	// Ideal is the latency of the same arrivals with ideal workers (--ideal).
	Ideal *loadgen.LatencyStats `json:"ideal_ms,omitempty"`
	// Late is the p99 of the delays with which requests were sent. It is zero in a closed loop.
	Late float64 `json:"late_p99_ms"`
	// CPU is the CPU time of the load generator for each request.
	CPU float64 `json:"own_cpu_ms"`
	// Standstill is the time when the machine did not run. It delays every server. Null: unknown.
	Standstill *loadgen.Standstill `json:"standstill"`
	Turns      int                 `json:"turns"`
	Again      int                 `json:"again"`    // turns that were repeated because of standstills
	Unsteady   int                 `json:"unsteady"` // turns that count in spite of a standstill
}

// appPath is the result of one of several paths.
type appPath struct {
	Path     string               `json:"path"`
	Requests int                  `json:"n"`
	Failures int                  `json:"failures"`
	Latency  loadgen.LatencyStats `json:"latency_ms"`
}

func Command(env loadgen.Env) *cobra.Command {
	o := appOptions{}
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

A virtual machine stands still while its host runs other machines, and every server is late then. The report shows
how often and for how long. With --again N a turn is repeated up to N times after a standstill. That is more than
20 ms at once, or more than 5 ms and a thousandth of the turn. The try with the shortest standstill counts. A turn
with failures always counts. After three turns for which repetition did not help, no turn is repeated.

With --ideal N the report also has the latency of the same arrivals with N ideal workers. Each request takes
--service and never waits while a worker is free.`,
		Example: `  packhorse-bench app http://127.0.0.1:3000/work --rate 0 --duration 5s
  packhorse-bench app http://127.0.0.1:3000/work --rate 27 --count 1000 --ideal 2 --service 36ms
  packhorse-bench app http://127.0.0.1:3000/work http://127.0.0.1:3001/work --rate 27 --count 600 --turns 6 --again 5
  packhorse-bench app http://127.0.0.1:3000 --rate 40 --path /work=1 --path /ready=4 --json`,
		Args: cobra.RangeArgs(1, maxAppServers),
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
	f.IntVar(&o.again, "again", 0, "repeat a turn up to this many times if the machine stood still")
	f.BoolVar(&o.json, "json", false, "print one JSON object; for several servers, an array \"rows\" of such objects")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		race, err := o.race(args)
		if err != nil {
			return err
		}
		ctx := cmd.Context()
		return loadgen.Interrupted(ctx, race.run(ctx, env, []string{"standstills"}))
	}
	return cmd
}

// load checks the flags.
func (o *appOptions) load(url string) (*appLoad, error) {
	t, err := loadgen.ParseTarget(url, false)
	if err != nil {
		return nil, err
	}
	if o.clients == 0 {
		o.clients = 1
		if o.rate > 0 {
			o.clients = 512
		}
	}
	switch {
	case t.TLS != nil:
		return nil, errors.New("bad URL: want http://, because this command does not measure TLS")
	case !(o.rate >= 0) || o.rate > loadgen.MaxSearchRate:
		return nil, fmt.Errorf("--rate %v: from 0 to %d", o.rate, loadgen.MaxSearchRate)
	case o.arrivals != "poisson" && o.arrivals != "constant":
		return nil, fmt.Errorf("--arrivals %q: want poisson or constant", o.arrivals)
	case o.clients < 0 || o.clients > loadgen.MaxClients:
		return nil, fmt.Errorf("--clients %d: from 1 to %d", o.clients, loadgen.MaxClients)
	case o.count < 0:
		return nil, fmt.Errorf("--count %d: must be positive", o.count)
	case o.duration <= 0 || o.timeout <= 0:
		return nil, errors.New("--duration and --timeout must be positive")
	case o.turns < 1 || o.turns > maxAppTurns || o.count > 0 && o.count < o.turns:
		return nil, fmt.Errorf("--turns %d: from 1 to %d, and no more than --count", o.turns, maxAppTurns)
	case o.count == 0 && o.duration/time.Duration(o.turns) < minAppTurn:
		return nil, fmt.Errorf("--duration %v in %d turns: the minimum for a turn is %v", o.duration, o.turns, minAppTurn)
	case o.again < 0 || o.again > maxAppTurns:
		return nil, fmt.Errorf("--again %d: up to %d", o.again, maxAppTurns)
	case o.workers < 0 || o.workers > 0 && (o.service <= 0 || o.rate == 0):
		return nil, errors.New("--ideal: needs --rate, and a positive --service")
	}
	l := &appLoad{target: t, open: o.rate > 0, clients: o.clients, timeout: o.timeout, keep: o.keep}
	paths := o.paths
	if len(paths) == 0 {
		paths = []string{max(t.Path, "/")}
	}
	for _, p := range paths {
		path, weight, err := parseWeighted(p)
		if err != nil {
			return nil, err
		}
		l.weights = append(l.weights, weight)
		l.paths = append(l.paths, path)
		l.requests = append(l.requests, t.Plain(path, o.keep))
	}
	return l, nil
}

const (
	maxAppCount   = 10_000_000 // of all servers; limits memory, about 40 bytes for each request
	maxAppServers = 100
	maxAppTurns   = 1000
	minAppTurn    = 10 * time.Millisecond
)

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

// appLoad is the load of one server in one turn.
type appLoad struct {
	target   *loadgen.Target
	open     bool
	arrivals *loadgen.Arrivals
	paths    []string
	weights  []int    // as paths
	requests [][]byte // as paths
	clients  int
	count    int           // total requests; 0: until the end of the duration
	duration time.Duration // 0: until count
	timeout  time.Duration
	keep     bool
}

// appOutcome is the result of one or several turns.
type appOutcome struct {
	latency  []loadgen.Samples // by path
	failed   []int             // by path
	due      []time.Duration   // of one turn
	late     loadgen.Samples
	elapsed  time.Duration
	failures loadgen.Failures
}

func (l *appLoad) outcome() *appOutcome {
	return &appOutcome{latency: make([]loadgen.Samples, len(l.paths)), failed: make([]int, len(l.paths))}
}

// run sends the requests of a turn.
func (l *appLoad) run(ctx context.Context) (*appOutcome, error) {
	s := &loadgen.Sender{Target: l.target, Requests: l.requests, Arrivals: l.arrivals, Open: l.open, Conns: l.clients,
		Keep: l.keep,
		// without the higher priority it waits for a CPU like other processes, which Late shows
		Count: l.count, Duration: l.duration, Timeout: l.timeout, Urgent: true, Check: loadgen.CheckStatus}
	sent, err := s.Run(ctx)
	if err != nil {
		return nil, err
	}
	out := l.outcome()
	out.failed, out.due, out.late, out.elapsed = sent.Failed, sent.Dues, sent.Late, sent.Elapsed
	out.failures.Join(sent.Failures)
	for _, a := range sent.Answers {
		out.latency[a.Request] = append(out.latency[a.Request], a.Took)
	}
	return out, nil
}

// report returns the report of a server.
func (o *appOptions) report(s *appServer) *appReport {
	l, out := s.load, s.out
	r := &appReport{URL: l.target.String(), Arrivals: "closed", Rate: o.rate, Seed: o.seed, Failures: out.failures.Count(),
		Turns: o.turns, Again: s.again, Unsteady: s.unsteady}
	if l.open {
		r.Arrivals = o.arrivals
		r.Late = out.late.Summarize().P99
	}
	var all loadgen.Samples
	for i, path := range l.paths {
		all = append(all, out.latency[i]...)
		if len(l.paths) > 1 {
			r.Paths = append(r.Paths, appPath{path, len(out.latency[i]), out.failed[i], out.latency[i].Stats()})
		}
	}
	r.Requests, r.Latency = len(all), all.Stats()
	r.RequestsPerS = loadgen.Round(loadgen.Rate(float64(len(all)), 1, out.elapsed), 2)
	r.CPU = loadgen.Milliseconds(s.cpu / time.Duration(max(r.Requests+r.Failures, 1)))
	if o.workers > 0 {
		best := s.ideal.Stats()
		r.Ideal = &best
	}
	if s.known {
		r.Standstill = &s.still
	}
	return r
}

func (r *appReport) print(w io.Writer) {
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
	line("machine", "%v", r.Standstill)
	if r.Turns > 1 || r.Again > 0 {
		line("turns", "%d, and %d made again; %d count although the machine stood still for long", r.Turns, r.Again,
			r.Unsteady)
	}
}
