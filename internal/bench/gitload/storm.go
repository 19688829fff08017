package gitload

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

const (
	// hitRate is the rate of fetches of a cached pack per second: enough for a median, too low to be a load.
	hitRate = 5
	// hitClients is the number of their connections.
	hitClients = 8
	// stormRound is the maximum duration of a round of the probes beside a load of unknown length.
	stormRound = 3 * time.Second
)

// stormOptions are the flags of `packhorse-bench storm`.
type stormOptions struct {
	loadgen.Common
	enough    int
	ref       string
	depth     int
	serverPID []int
	memory    byteCount // 0: no limit
}

// stormPhase is the result of one phase.
type stormPhase struct {
	Small     loadgen.Percentiles `json:"small_ms"`
	Hit       loadgen.Percentiles `json:"hit_ms"`
	Completed int                 `json:"completed"` // successful clones
	Refused   int                 `json:"refused"`   // clones that got 429 or 503 with Retry-After
	Failed    int                 `json:"failed"`    // clones and probes with any other result
	Seconds   float64             `json:"seconds"`   // from the start of the first clone to the end of the last
	PerSecond float64             `json:"per_second"`
	// of the server and its descendants; compare it with limits.memory
	PeakAnon int64 `json:"peak_anon_bytes"`
	// With mapped files: of the server, and of its git processes together, where they may count several times.
	PeakServer   int64 `json:"peak_server_rss_bytes"`
	PeakChildren int64 `json:"peak_children_rss_bytes"`
}

// stormReport is the output of `packhorse-bench storm --json`.
type stormReport struct {
	Alone   stormPhase `json:"alone"`
	Enough  stormPhase `json:"enough"`
	Storm   stormPhase `json:"storm"`
	Clients int        `json:"clients"`
	Few     int        `json:"few"`   // number of clients of the second phase
	Ratio   float64    `json:"ratio"` // clones per second, storm to second phase
	Hits    float64    `json:"hits"`  // p50 of hits, storm to first phase
	Memory  int64      `json:"memory_limit_bytes,omitempty"`
	Below   *bool      `json:"below_memory_limit,omitempty"` // peak_anon_bytes of all phases; absent without a limit
}

func StormCommand(env loadgen.Env) *cobra.Command {
	var o stormOptions
	cmd := &cobra.Command{
		Use:   "storm URL",
		Short: "Measure the effect of hundreds of cold full clones at once",
		Long: `The command has three phases:

  alone   a small request (ls-refs of one ref) 50 times per second regardless of the server, and a fetch from the cache
          (a clone of depth --depth) 5 times per second
  enough  beside them, --enough full clones at the same time, one after the other, which keep the server busy
  storm   beside them, CLIENTS full clones at once, one for each client

Each clone requests the whole history of other tips, in this run and in earlier ones, so that its pack is in no cache.
It succeeds, or the server refuses it with 429 or 503 and Retry-After. Any other result is an error and makes this
command fail. Clients do not retry.

URL may be that of a gateway. With --server-pid the report has the maximum anonymous memory of that process and its
descendants, including git, and the resident memory with mapped files. With several processes, such as a gateway and
its nodes, it has their sums. With --memory, which takes values like limits.memory, the command fails if anonymous
memory was not below that. Mapped files do not count, because the system can drop them.

The clones run in a child process at a lower priority (nice 5), and the small requests at a higher one (nice -5) if that
is permitted.`,
		Example: `  packhorse-bench storm http://127.0.0.1:8080/demo.git --clients 500 --server-pid 4711
  packhorse-bench storm http://127.0.0.1:8080/demo.git --server-pid 4711,4712 --memory 1GiB   # a gateway and its node
  packhorse-bench storm http://127.0.0.1:8080/demo.git --clients 100 --enough 2 --duration 10s --json`,
		Args: cobra.ExactArgs(1),
	}
	o.Flags(cmd)
	f := cmd.Flags()
	f.Lookup("clients").DefValue, o.Clients = "500", 500
	f.IntVar(&o.enough, "enough", 2*runtime.NumCPU(), "number of parallel clones that keep the server busy")
	f.IntVar(&o.depth, "depth", 1, "depth of the clone from the cache; 0: a full clone")
	f.StringVar(&o.ref, "ref", "", "the ref of the small request (default: the target of HEAD)")
	f.IntSliceVar(&o.serverPID, "server-pid", nil, "measure the memory of these processes and their descendants")
	f.Var(&o.memory, "memory", "limit of the server's memory, such as 2GiB; needs --server-pid")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		t, err := loadgen.ParseTarget(args[0], o.Insecure)
		if err != nil {
			return err
		}
		if err := o.Check(); err != nil {
			return err
		}
		if o.enough < 1 || o.depth < 0 {
			return errors.New("--enough must be at least 1, and --depth at least 0")
		}
		if o.memory > 0 && len(o.serverPID) == 0 {
			return errors.New("--memory needs --server-pid")
		}
		return loadgen.Interrupted(cmd.Context(), o.run(cmd.Context(), env, t, []string{"load"}))
	}
	return cmd
}

// byteCount is a flag: a number of bytes, with KiB, MiB or GiB if needed.
type byteCount int64

func (b *byteCount) Set(s string) error {
	number, unit := s, int64(1)
	for i, suffix := range []string{"KiB", "MiB", "GiB"} {
		if cut, ok := strings.CutSuffix(s, suffix); ok {
			number, unit = cut, 1<<(10*(i+1))
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 || n > math.MaxInt64/unit {
		return errors.New("want a number of bytes, such as 512MiB or 2GiB")
	}
	*b = byteCount(n * unit)
	return nil
}

func (b *byteCount) String() string { return strconv.FormatInt(int64(*b), 10) }
func (b *byteCount) Type() string   { return "size" }

// storm is a prepared run.
type storm struct {
	*stormOptions
	env   loadgen.Env
	small *loadgen.Pings
	hit   *loadgen.Replay
	job   LoadJob
	args  []string // of the child
}

func (o *stormOptions) run(ctx context.Context, env loadgen.Env, t *loadgen.Target, childArgs []string) error {
	s, err := o.prepare(ctx, env, t, childArgs)
	if err != nil {
		return err
	}
	r := stormReport{Clients: o.Clients, Few: o.enough}
	for _, phase := range []struct {
		name string
		into *stormPhase
		load *LoadJob
	}{
		{"alone", &r.Alone, nil}, {"beside just enough clones", &r.Enough, s.clones(o.enough, o.Duration)},
		{"in the storm", &r.Storm, s.clones(o.Clients, 0)},
	} {
		stop := loadgen.Progress(ctx, env.Stderr, func() string { return "measuring " + phase.name })
		*phase.into, err = s.measure(ctx, phase.load)
		stop()
		if err != nil {
			return err
		}
	}
	if r.Enough.PerSecond > 0 {
		r.Ratio = loadgen.Round(r.Storm.PerSecond/r.Enough.PerSecond, 3)
	}
	if r.Alone.Hit.P50 > 0 {
		r.Hits = loadgen.Round(r.Storm.Hit.P50/r.Alone.Hit.P50, 2)
	}
	if s.memory > 0 {
		below := max(r.Alone.PeakAnon, r.Enough.PeakAnon, r.Storm.PeakAnon) < int64(s.memory)
		r.Memory, r.Below = int64(s.memory), &below
	}
	return s.report(t, &r)
}

// prepare makes the probes and the load.
func (o *stormOptions) prepare(ctx context.Context, env loadgen.Env, t *loadgen.Target,
	childArgs []string) (*storm, error) {
	stop := loadgen.Progress(ctx, env.Stderr, func() string { return "preparing" })
	defer stop()
	n := neighbourOptions{Common: o.Common, cold: true, ref: o.ref}
	small, job, err := n.prepare(ctx, env, t)
	if err != nil {
		return nil, err
	}
	o.ref = n.ref
	job.Full = true
	s := &storm{stormOptions: o, env: env, small: small, job: *job, args: childArgs}
	if s.hit, _, err = prepareFetch(ctx, t, FetchSpec{depth: o.depth}, o.Timeout); err != nil {
		return nil, err
	}
	s.hit.Clients, s.hit.Rate, s.hit.Timeout = hitClients, hitRate, o.Timeout
	return s, nil
}

// clones returns a job for this number of clients. It lasts for the duration, or for one clone each. Each has other
// shapes.
func (s *storm) clones(clients int, duration time.Duration) *LoadJob {
	job := s.job
	job.Clients, job.Duration = clients, duration
	if duration == 0 {
		job.Count = clients
	}
	job.Seed += uint64(clients)
	return &job
}

// measure runs the probes until the load has ended, or for the duration without a load.
func (s *storm) measure(ctx context.Context, job *LoadJob) (p stormPhase, err error) {
	var trees []*loadgen.TreeWatch
	for _, pid := range s.serverPID {
		tree, err := loadgen.WatchTree(pid)
		if err != nil {
			return p, err
		}
		defer tree.Stop()
		trees = append(trees, tree)
	}
	ended := make(chan error, 1)
	var result *loadgen.LoadResult
	if job != nil {
		load, err := loadgen.StartLoad(ctx, job, s.args)
		if err != nil {
			return p, err
		}
		defer load.Kill()
		go func() {
			var err error
			result, err = load.Await()
			ended <- err
		}()
	}
	var small, hits loadgen.Samples
	for began, running := time.Now(), true; running; {
		one, hit, err := s.probe(ctx)
		if err != nil {
			return p, err
		}
		select {
		case err := <-ended:
			if err != nil {
				return p, fmt.Errorf("the load process failed: %w", err)
			}
			running = false
		default:
			running = job != nil || time.Since(began) < s.Duration
		}
		p.Failed += one.Failures.Count() + hit.Failures.Count()
		one.Failures.Print(s.env.Stderr)
		hit.Failures.Print(s.env.Stderr)
		if running || job == nil || len(small) == 0 { // the load ended during the last round
			small, hits = append(small, one.Latency...), append(hits, hit.Latency...)
		}
	}
	p.Small, p.Hit = small.Summarize(), hits.Summarize()
	for _, tree := range trees {
		if usage := tree.Stop(); usage != nil {
			p.PeakAnon += usage.Anon
			p.PeakServer += usage.Rss
			p.PeakChildren += usage.ChildRSS
		}
	}
	if result == nil {
		return p, nil
	}
	for _, msg := range result.First {
		fmt.Fprintf(s.env.Stderr, "error: clone: %s\n", msg)
	}
	if result.Exhausted {
		fmt.Fprintf(s.env.Stderr, "note: the repository's refs gave no further shapes: fewer clones ran\n")
	}
	p.Completed, p.Refused, p.Seconds = result.Requests, result.Refused, loadgen.Round(result.Elapsed.Seconds(), 2)
	p.Failed += result.Errors
	p.PerSecond = loadgen.Round(loadgen.Rate(float64(result.Requests), 1, result.Elapsed), 3)
	return p, nil
}

// probe runs both probes for a round.
func (s *storm) probe(ctx context.Context) (small, hit *loadgen.Outcome, err error) {
	type answer struct {
		out *loadgen.Outcome
		err error
	}
	round := min(stormRound, s.Duration)
	hits := make(chan answer, 1)
	go func() {
		load := *s.hit
		load.Duration = round
		out, err := load.Run(ctx, nil)
		hits <- answer{out, err}
	}()
	s.small.Duration = round
	small, err = s.small.Run(ctx)
	h := <-hits
	return small, h.out, errors.Join(err, h.err)
}

func (s *storm) report(t *loadgen.Target, r *stormReport) error {
	var err error
	if s.JSON {
		err = loadgen.WriteJSON(s.env.Stdout, r)
	} else {
		fmt.Fprintf(s.env.Stdout, "%s\n%d full clones at once, each of a different shape; enough: %d at the same time\n", t,
			r.Clients, r.Few)
		fmt.Fprintf(s.env.Stdout, "  %-8s %22s %22s %10s %8s %8s %9s %10s\n", "", "small p50 / p99 ms", "hit p50 / p99 ms",
			"completed", "refused", "failed", "clones/s", "anon MB")
		for _, row := range []struct {
			name string
			*stormPhase
		}{{"alone", &r.Alone}, {"enough", &r.Enough}, {"storm", &r.Storm}} {
			fmt.Fprintf(s.env.Stdout, "  %-8s %22s %22s %10d %8d %8d %9.2f %10.1f\n", row.name,
				fmt.Sprintf("%.2f / %.2f", row.Small.P50, row.Small.P99), fmt.Sprintf("%.1f / %.1f", row.Hit.P50, row.Hit.P99),
				row.Completed, row.Refused, row.Failed, row.PerSecond, float64(row.PeakAnon)/1e6)
		}
		if len(s.serverPID) > 0 {
			fmt.Fprintf(s.env.Stdout, "  resident at the most, mapped files included: server %.1f MB, git's processes "+
				"together %.1f MB\n",
				float64(r.Storm.PeakServer)/1e6, float64(r.Storm.PeakChildren)/1e6)
		}
		if r.Below != nil {
			fmt.Fprintf(s.env.Stdout, "  memory stayed below the limit of %.1f MB: %t\n", float64(r.Memory)/1e6, *r.Below)
		}
		_, err = fmt.Fprintf(s.env.Stdout, "  completed clones/s, storm to enough: %.2f; hits' p50, storm to alone: %.2f\n",
			r.Ratio, r.Hits)
	}
	if n := r.Alone.Failed + r.Enough.Failed + r.Storm.Failed; n > 0 {
		err = errors.Join(err, fmt.Errorf("%d requests failed", n))
	}
	if r.Below != nil && !*r.Below {
		err = errors.Join(err, fmt.Errorf("the server used more memory than %d bytes", r.Memory))
	}
	return err
}
