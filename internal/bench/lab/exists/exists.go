// Package exists measures small requests to a storage node while it starts git processes.
package exists

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/chart"
	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// existsOptions are the flags of `packhorse-bench lab exists`.
type existsOptions struct {
	rate     float64
	children float64
	duration time.Duration
	timeout  time.Duration
	ref      string
	ops      string
	insecure bool
	json     bool
	rpc      gitload.RPCOptions

	server        gitload.Server
	load, machine []string // arguments of the process that makes clones, and of the one that watches for standstills
}

// existsReport is the output of `packhorse-bench lab exists --json`.
type existsReport struct {
	All      loadgen.Percentiles `json:"exists_ms"`
	First    loadgen.Percentiles `json:"first_ms"` // of the first WindowS seconds
	Last     loadgen.Percentiles `json:"last_ms"`
	WindowS  float64             `json:"window_s"`
	P99Ratio float64             `json:"p99_last_to_first"`
	PerS     float64             `json:"exists_per_s"`
	Requests int                 `json:"requests"`
	Errors   int                 `json:"errors"` // of both kinds
	// ChildPerS is the rate of git pack-objects, from the server's metrics. Null: unknown.
	ChildPerS *float64 `json:"children_per_s"`
	Clones    int      `json:"clones"`

	Standstill *loadgen.StandstillReport `json:"standstill"` // null: unknown
}

const existsHelp = `Sends RefService.Exists to a storage node at a fixed rate, with the control API like the Go client, regardless of the
node (open loop). Meanwhile the node starts git processes at a fixed rate. Latency counts from the time when a request
was due. The report compares the first ten seconds with the last ten, because a node that does not clean up after its
children becomes slower.

Each child is the git pack-objects of a shallow clone that differs from all others, so that its pack is in no cache.

Without arguments the command starts a server with a small repository, whose packs take milliseconds. With URL the
clones go there, and the requests to the node of --rpc. The repository's path is the same in both, and the repository
needs enough branches for clones that differ.

The clones run in a process at a lower priority (nice 5), and the requests at a higher one (nice -5) if that is
permitted. A virtual machine stands still while its host runs other machines, and every server is late then. The report
has these times, and the percentiles without the requests that met them.`

func Command(env loadgen.Env) *cobra.Command {
	var o existsOptions
	cmd := &cobra.Command{
		Use:   "exists [URL --rpc ADDRESS]",
		Short: "Measure small requests to a node while it starts git processes at a fixed rate",
		Long:  existsHelp,
		Example: `  packhorse-bench lab exists
  packhorse-bench lab exists --rate 500 --children 10 --duration 30s --json
  packhorse-bench lab exists http://127.0.0.1:8080/demo.git --rpc 127.0.0.1:7420 --secret-file secret --ops 127.0.0.1:9090`,
		Args: cobra.MaximumNArgs(1),
	}
	f := cmd.Flags()
	f.Float64Var(&o.rate, "rate", 1000, "requests per second")
	f.Float64Var(&o.children, "children", 20, "git processes per second")
	f.DurationVar(&o.duration, "duration", time.Minute, "how long the run starts requests")
	f.DurationVar(&o.timeout, "timeout", 30*time.Second, "timeout of a request or a clone")
	f.StringVar(&o.ref, "ref", "", "the ref of the requests (default: the target of HEAD)")
	f.StringVar(&o.ops, "ops", "",
		"the server's metrics (default: http://127.0.0.1:9090/metrics if the server is on this machine)")
	f.BoolVar(&o.insecure, "insecure", false, "accept any TLS certificate of URL")
	f.BoolVar(&o.json, "json", false, "print one JSON object")
	o.rpc.Flags(cmd)
	f.Lookup("rpc").Usage = "the node at HOST:PORT or unix:PATH"
	o.server.Flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.check(args); err != nil {
			return err
		}
		if len(args) == 0 {
			if err := o.server.Find(); err != nil {
				return err
			}
		}
		o.load, o.machine = []string{"load"}, []string{"standstills"}
		return loadgen.Interrupted(cmd.Context(), o.run(cmd.Context(), env, args))
	}
	return cmd
}

// maxExistsRate limits both rates.
const maxExistsRate = 100_000

func (o *existsOptions) check(args []string) error {
	switch {
	case !(o.rate > 0 && o.rate <= maxExistsRate) || !(o.children > 0 && o.children <= maxExistsRate):
		return fmt.Errorf("--rate and --children: want positive numbers up to %d", maxExistsRate)
	case o.duration <= 0 || o.timeout <= 0:
		return errors.New("--duration and --timeout must be positive")
	case len(args) > 0 && o.rpc.Address == "":
		return errors.New("URL needs --rpc with the address of the node")
	case len(args) == 0 && (o.rpc.Address != "" || o.ops != "" || o.ref != ""):
		return errors.New("--rpc, --ops and --ref need a URL: without it the command starts its own server")
	}
	return o.rpc.Check()
}

// run measures the given server, or its own.
func (o *existsOptions) run(ctx context.Context, env loadgen.Env, args []string) (err error) {
	phase := "preparing"
	stop := loadgen.Progress(ctx, env.Stderr, func() string { return phase })
	defer func() { stop() }()
	if len(args) == 0 {
		dir, err := os.MkdirTemp("", "packhorse-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		server, err := o.start(ctx, dir)
		if err != nil {
			return err
		}
		defer server.Stop() //nolint:errcheck // its responses were correct
		args = []string{server.URL}
		o.ops = server.Ops
	}
	t, err := loadgen.ParseTarget(args[0], o.insecure)
	if err != nil {
		return err
	}
	q, job, err := o.prepare(ctx, t)
	if err != nil {
		return err
	}
	phase = "asking"
	r, out, clones, err := o.measure(ctx, q, job, loadgen.NewScraper(t, o.ops))
	if err != nil {
		return err
	}
	stop()
	return o.print(env, out, r, clones)
}

// measure sends the requests while another process makes the clones.
func (o *existsOptions) measure(ctx context.Context, q *loadgen.Pings, job *gitload.LoadJob,
	counters *loadgen.Scraper) (*existsReport, *loadgen.Outcome, *loadgen.LoadResult, error) {
	load, err := loadgen.StartLoad(ctx, job, o.load)
	if err != nil {
		return nil, nil, nil, err
	}
	defer load.Kill()
	if err := load.Ready(ctx); err != nil {
		return nil, nil, nil, err
	}
	machine := loadgen.WatchStandstills(ctx, o.machine)
	defer machine.Kill()
	q.Duration = min(warmUp, o.duration/10)
	if _, err := q.Run(ctx); err != nil {
		return nil, nil, nil, err
	}
	before, err := counters.Read(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	began := time.Now()
	q.Duration = o.duration
	out, err := q.Run(ctx)
	elapsed := time.Since(began)
	if err != nil {
		return nil, nil, nil, err
	}
	after, err := counters.Read(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	spans, known := machine.End()
	var clones loadgen.LoadResult
	if err := load.Finish(&clones); err != nil {
		return nil, nil, nil, err
	}
	r := newReport(out, o.duration)
	if known {
		r.Standstill = loadgen.NewStandstillReport(spans, out.Began, out.Timed)
	}
	r.Clones, r.Errors = clones.Requests, r.Errors+clones.Errors
	if before != nil && after != nil && after.PackRuns >= before.PackRuns {
		r.ChildPerS = new(loadgen.Round(loadgen.Rate(after.PackRuns-before.PackRuns, 1, elapsed), 2))
	}
	return r, out, &clones, nil
}

// warmUp is the duration of requests before the measurement.
const warmUp = 2 * time.Second

// start serves a repository that is made for the run.
func (o *existsOptions) start(ctx context.Context, dir string) (*gitload.OwnServer, error) {
	seed := filepath.Join(dir, "seed.git")
	if _, err := gitload.RunGit(ctx, "", nil, "init", "-q", "--bare", "--initial-branch=main", "--", seed); err != nil {
		return nil, err
	}
	if _, err := gitload.RunGit(ctx, seed, strings.NewReader(branchesStream()), "fast-import", "--quiet"); err != nil {
		return nil, err
	}
	const quiet = "[warmup]\nenabled = false\n[search]\nenabled = false\n" // the first seconds are measured too
	socket := filepath.Join(dir, "node.sock")
	o.rpc.Address = "unix:" + socket
	return gitload.StartServer(ctx, dir, seed, o.server.Program, []string{"--listen", o.rpc.Address}, quiet)
}

// The size of the run's repository. Clones of two of its branches with a depth give 40,000 different packs.
const seedBranches, seedDepth = 64, gitload.MaxColdDepth

// branchesStream is the input of git fast-import for the repository (git-fast-import(1)).
func branchesStream() string {
	var b strings.Builder
	for i := range seedBranches {
		name := "refs/heads/main"
		if i > 0 {
			name = fmt.Sprintf("refs/heads/side%d", i)
		}
		for j := range seedDepth {
			text := fmt.Sprintf("commit %d of branch %d\n", j, i)
			fmt.Fprintf(&b, "commit %s\ncommitter bench <bench@example.com> %d +0000\ndata %d\n%sM 644 inline file\ndata %d\n%s",
				name, 1_700_000_000+j, len(text), text, len(text), text)
		}
	}
	return b.String()
}

// existsConns is the number of connections of the clones.
const existsConns = 8

// prepare sends one request, and makes the job of the process that makes clones.
func (o *existsOptions) prepare(ctx context.Context, t *loadgen.Target) (*loadgen.Pings, *gitload.LoadJob, error) {
	refs, err := gitload.ListRefs(ctx, t, o.timeout)
	if err != nil {
		return nil, nil, err
	}
	if o.ref == "" {
		if o.ref, err = gitload.DefaultRef(refs.Refs); err != nil {
			return nil, nil, err
		}
	}
	job := gitload.NewLoadJob(t)
	job.Clients, job.Timeout, job.Rate = existsConns, o.timeout, o.children
	if err := job.Cold(refs); err != nil {
		return nil, nil, err
	}
	repository, err := gitload.RepositoryOf(t)
	if err != nil {
		return nil, nil, err
	}
	node, err := o.rpc.Client() // its errors are more specific than a status
	if err != nil {
		return nil, nil, err
	}
	defer node.Close()
	limited, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	request := &packhorsev1.ExistsRequest{Repository: repository, Name: o.ref}
	response, err := node.Refs().Exists(limited, connect.NewRequest(request))
	if err == nil && !response.Msg.GetExists() {
		err = errors.New("the ref does not exist")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("request %s from the node: %w", o.ref, err)
	}
	q, err := o.rpc.Pings(ctx, packhorsev1connect.RefServiceExistsProcedure, request, o.timeout)
	if err != nil {
		return nil, nil, fmt.Errorf("request %s from the node: %w", o.ref, err)
	}
	q.Conns, q.Rate, q.Urgent = questionConns, o.rate, true
	return q, job, nil
}

// questionConns is the number of connections of the requests. A late response does not delay the next request.
const questionConns = 128

// existsWindow is the length of the compared parts at the start and end of the run. It is a sixth of short runs.
const existsWindow = 10 * time.Second

func newReport(out *loadgen.Outcome, duration time.Duration) *existsReport {
	window := min(existsWindow, duration/6)
	var all, first, last loadgen.Samples
	for _, a := range out.Timed {
		all = append(all, a.Took)
		switch {
		case a.Due < window:
			first = append(first, a.Took)
		case a.Due >= duration-window:
			last = append(last, a.Took)
		}
	}
	r := &existsReport{All: all.Summarize(), First: first.Summarize(), Last: last.Summarize(),
		WindowS:  loadgen.Round(window.Seconds(), 2),
		Requests: len(all), Errors: out.Failures.Count(), PerS: loadgen.Round(loadgen.Rate(float64(len(all)), 1, out.Elapsed),
			1)}
	if r.First.P99 > 0 {
		r.P99Ratio = loadgen.Round(r.Last.P99/r.First.P99, 3)
	}
	return r
}

func (o *existsOptions) print(env loadgen.Env, out *loadgen.Outcome, r *existsReport,
	clones *loadgen.LoadResult) (err error) {
	out.Failures.Print(env.Stderr)
	for _, msg := range clones.First {
		fmt.Fprintf(env.Stderr, "error: clone: %s\n", msg)
	}
	if clones.Exhausted {
		fmt.Fprintln(env.Stderr, "note: the repository's refs gave no further clones: git processes ended early")
	}
	if !out.Urgent {
		fmt.Fprintf(env.Stderr, "note: no permission for nice %d: the requests have no priority\n",
			loadgen.UrgentNice)
	}
	if o.json {
		err = loadgen.WriteJSON(env.Stdout, r)
	} else {
		_, err = fmt.Fprintf(env.Stdout,
			"RefService.Exists of %s at %s, %g/s for %v\n  %-12s %v\n  %-12s %v\n  %-12s %v\n  %-12s %.3f (p99, last %gs to "+
				"first)\n"+
				"  %-12s %v\n  %-12s %d (%.1f/s)\n  %-12s %d clones; git pack-objects: %s\n", o.ref, o.rpc.Address, o.rate,
			o.duration, "all", r.All, "first", r.First, "last", r.Last,
			"ratio", r.P99Ratio, r.WindowS, "machine", r.Standstill, "answers", r.Requests, r.PerS,
			"children", r.Clones, chart.OrDash("%.2f/s", r.ChildPerS))
	}
	if r.Errors > 0 {
		err = errors.Join(err, fmt.Errorf("%d requests failed", r.Errors))
	}
	return err
}
