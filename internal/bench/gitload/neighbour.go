package gitload

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// neighbourOptions are the flags of `packhorse-bench neighbour`.
type neighbourOptions struct {
	loadgen.Common
	mbps float64
	cold bool
	ref  string
	rpc  RPCOptions
}

// neighbourReport is the output of `packhorse-bench neighbour --json`. requests and errors count the small requests of
// both phases and the clones.
type neighbourReport struct {
	Alone    loadgen.Percentiles `json:"alone_ms"`
	Loaded   loadgen.Percentiles `json:"loaded_ms"`
	MBPerS   float64             `json:"mb_per_s"`
	Requests int                 `json:"requests"`
	Errors   int                 `json:"errors"`
}

func NeighbourCommand(env loadgen.Env) *cobra.Command {
	var o neighbourOptions
	cmd := &cobra.Command{
		Use:     "neighbour URL",
		Aliases: []string{"neighbor"},
		Short:   "Measure the effect of many clones on small requests",
		Long: `Sends a small request (ls-refs of one ref) 50 times per second on its own connections, regardless of the server.
Latency counts from the time when a request was due. For a third of the duration it runs alone, and for the rest beside
CLIENTS clones:

  (default)  full clones, as fast as possible; the server may answer them from a cache
  --mbps M   full clones that read M MB/s together
  --cold     shallow clones that differ from each other and from earlier runs, so that they are in no cache

With --rpc the small request is RefService.Resolve at a storage node, with the control API. The clones still go to URL,
which is the gateway in front of the node, or any server beside it. The repository's path is the same in both.

In practice clients run on other machines. Here they may share the CPUs with the server. So the clones run in a child
process at a lower priority (nice 5), and the small requests at a higher one (nice -5) if that is permitted. The report
shows the priorities.

Linux may give each session an equal share of the CPUs, regardless of priorities (autogroup). Then priorities have
little effect if server and bench run in two terminals, and all requests wait longer. Start both from one shell, or set
kernel.sched_autogroup_enabled = 0 before the servers start.`,
		Example: `  packhorse-bench neighbour http://127.0.0.1:8080/demo.git --clients 30 --duration 30s
  packhorse-bench neighbour http://127.0.0.1:8080/demo.git --clients 30 --mbps 400
  packhorse-bench neighbour http://127.0.0.1:8080/demo.git --clients 8 --cold --json
  packhorse-bench neighbour http://127.0.0.1:8080/demo.git --clients 30 --rpc 127.0.0.1:7420 --secret-file secret`,
		Args: cobra.ExactArgs(1),
	}
	o.Flags(cmd)
	f := cmd.Flags()
	f.Float64Var(&o.mbps, "mbps", 0, "the clones read this many MB/s together (0: no limit)")
	f.BoolVar(&o.cold, "cold", false, "every clone requests objects that are in no cache")
	f.StringVar(&o.ref, "ref", "", "the ref of the small request (default: the target of HEAD)")
	o.rpc.Flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		t, err := loadgen.ParseTarget(args[0], o.Insecure)
		if err != nil {
			return err
		}
		if err := o.Check(f); err != nil {
			return err
		}
		if o.mbps < 0 {
			return fmt.Errorf("--mbps %v: must be positive", o.mbps)
		}
		if err := o.rpc.Check(); err != nil {
			return err
		}
		ctx := cmd.Context()
		return loadgen.Interrupted(ctx, o.run(ctx, env, t, args[0]))
	}
	return cmd
}

func (o *neighbourOptions) run(ctx context.Context, env loadgen.Env, t *loadgen.Target, url string) error {
	stop := loadgen.Progress(ctx, env.Stderr, func() string { return "preparing" })
	defer func() { stop() }()
	probe, err := o.small(ctx, t)
	if err != nil {
		return err
	}
	if !o.cold { // the clones may then come from a cache
		if _, _, err := PrepareFetch(ctx, t, 0, "", o.Timeout, nil); err != nil {
			return err
		}
	}
	stop()
	stop = loadgen.Measuring(ctx, env.Stderr, o.Duration)
	probe.Duration = o.Duration / 3
	alone, err := probe.Run(ctx)
	if err != nil {
		return err
	}
	job := &loadJob{URL: url, Insecure: o.Insecure, Clients: o.Clients, Timeout: o.Timeout, MBPerS: o.mbps, Cold: o.cold}
	load, err := job.start(ctx)
	if err != nil {
		return err
	}
	defer load.kill()
	probe.Duration, probe.Arrivals = o.Duration-o.Duration/3, loadgen.FixedRate(loadgen.ProbeRate)
	loaded, err := probe.Run(ctx)
	if err != nil {
		return err
	}
	result, err := load.finish()
	if err != nil {
		return err
	}
	stop()
	return o.report(env, t, alone, loaded, result)
}

func (o *neighbourOptions) report(env loadgen.Env, t *loadgen.Target, alone, loaded *loadgen.Outcome,
	load *loadResult) error {
	r := neighbourReport{
		Alone:    alone.Latency().Summarize(),
		Loaded:   loaded.Latency().Summarize(),
		MBPerS:   loadgen.Round(loadgen.Rate(float64(load.Bytes), 1e6, load.Elapsed), 2),
		Requests: len(alone.Answers) + len(loaded.Answers) + load.Requests,
		Errors:   alone.Failures.Count() + loaded.Failures.Count() + load.Errors,
	}
	alone.Failures.Print(env.Stderr)
	loaded.Failures.Print(env.Stderr)
	for _, msg := range load.First {
		fmt.Fprintf(env.Stderr, "error: clone: %s\n", msg)
	}
	if load.Exhausted {
		fmt.Fprintf(env.Stderr, "note: the repository's refs gave no further shapes: the load ended early\n")
	}
	if !loaded.Urgent {
		fmt.Fprintf(env.Stderr, "note: no permission for nice %d: the small requests have no priority\n",
			loadgen.UrgentNice)
	}
	var err error
	if o.JSON {
		err = loadgen.WriteJSON(env.Stdout, r)
	} else {
		priority := fmt.Sprintf("clones at nice %d", loadgen.LoadNice)
		if loaded.Urgent {
			priority = fmt.Sprintf("these at nice %d, %s", loadgen.UrgentNice, priority)
		}
		request := "ls-refs"
		if o.rpc.Address != "" {
			request = "RefService.Resolve at " + o.rpc.Address
		}
		_, err = fmt.Fprintf(env.Stdout,
			"%s\n%s of %s at %d/s, %d and %d of them; %s\n  %-12s %v\n  %-12s %v\n"+
				"  %-12s %.1f MB/s, %d whole ones by %d clients\n", t, request, o.ref, loadgen.ProbeRate,
			len(alone.Answers), len(loaded.Answers), priority,
			"alone", r.Alone, "loaded", r.Loaded, "clones", r.MBPerS, load.Requests, o.Clients)
	}
	if r.Errors > 0 {
		err = errors.Join(err, fmt.Errorf("%d requests failed", r.Errors))
	}
	return err
}

// small returns the load of small requests.
func (o *neighbourOptions) small(ctx context.Context, t *loadgen.Target) (p *loadgen.Load, err error) {
	if o.ref == "" {
		refs, err := ListRefs(ctx, t, o.Timeout)
		if err != nil {
			return nil, err
		}
		if o.ref, err = DefaultRef(refs.Refs); err != nil {
			return nil, err
		}
	}
	if p, _, err = o.rpc.prepare(ctx, t, o.ref, o.Timeout); err != nil {
		return nil, err
	}
	p.Conns, p.Arrivals, p.Connect, p.Urgent = loadgen.ProbeConns, loadgen.FixedRate(loadgen.ProbeRate), true, true
	return p, nil
}

// DefaultRef returns the target of HEAD, or the first branch.
func DefaultRef(refs []ref) (string, error) {
	for _, r := range refs {
		if r.Name == "HEAD" && r.symref != "" && !r.Id.IsZero() {
			return r.symref, nil
		}
	}
	for _, r := range refs {
		if strings.HasPrefix(r.Name, "refs/heads/") {
			return r.Name, nil
		}
	}
	return "", errors.New("the repository has no branch: choose a ref with --ref")
}
