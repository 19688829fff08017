package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// refsReport is what `packhorse-bench refs --json` prints.
type refsReport struct {
	MBPerS       float64     `json:"mb_per_s"` // 0 with --rpc: not counted
	RequestsPerS float64     `json:"requests_per_s"`
	Requests     int         `json:"requests"` // without the failed ones
	Errors       int         `json:"errors"`
	Latency      percentiles `json:"latency_ms"`
}

func refsCommand(env Env) *cobra.Command {
	var (
		o         common
		prefix    string
		perSecond float64
		rpc       rpcOptions
	)
	cmd := &cobra.Command{
		Use:   "refs URL --prefix REF",
		Short: "Measure ref look-ups: ls-refs of one ref, many times",
		Long: `Asks for the refs that begin with REF (protocol v2, ls-refs with peel and symrefs) again and again on many
connections. The first answer has to hold such a ref, and all later ones have to be the same, byte for byte.

The loop is closed unless --rate is given; then latency counts from the time that a request was due. "packhorse-bench mkrefs" makes a
repository with very many refs.

With --rpc a storage node is asked by the control API as the Go client makes it: RefService.Resolve of REF, which is a name then. URL only says
which repository; nothing is asked there.`,
		Example: `  packhorse-bench refs http://127.0.0.1:8080/refs.git --prefix refs/heads/main
  packhorse-bench refs http://127.0.0.1:8080/refs.git --prefix refs/pull/77/ --clients 1 --json
  packhorse-bench refs http://127.0.0.1:8080/refs.git --prefix refs/heads/main --rate 1000
  packhorse-bench refs http://127.0.0.1:8080/refs.git --prefix refs/heads/main --rpc unix:/run/packhorse/node.sock`,
		Args: cobra.ExactArgs(1),
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&prefix, "prefix", "", "ask for the refs that begin with this (required)")
	cmd.Flags().Float64Var(&perSecond, "rate", 0, "open loop: this many requests a second in all")
	rpc.flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		t, err := parseTarget(args[0], o.insecure)
		if err != nil {
			return err
		}
		if err := o.check(); err != nil {
			return err
		}
		switch {
		case prefix == "" || strings.ContainsAny(prefix, " \n\x00") || len(prefix) > 1000:
			return errors.New("--prefix: want a ref's name or its beginning, such as refs/heads/main")
		case perSecond < 0:
			return fmt.Errorf("--rate %v: has to be positive", perSecond)
		}
		if err := rpc.check(); err != nil {
			return err
		}
		ctx := cmd.Context()
		prepare := prepareRefsLoad
		if rpc.address != "" {
			prepare = rpc.prepareCallsLoad
		}
		return interrupted(ctx, runRefs(ctx, env, t, &o, prefix, perSecond, prepare))
	}
	return cmd
}

// refsLoad makes the requests of a run and says what they are.
type refsLoad struct {
	run   func(ctx context.Context) (*outcome, error)
	close func()
	about string
}

func prepareRefsLoad(ctx context.Context, t *target, prefix string, o *common, perSecond float64) (*refsLoad, error) {
	p, err := prepareRefs(ctx, t, prefix, o.timeout)
	if err != nil {
		return nil, err
	}
	p.conns, p.rate, p.duration = o.clients, perSecond, o.duration
	return &refsLoad{p.run, func() {}, fmt.Sprintf("ls-refs of %s, answers of %d bytes", prefix, len(p.want))}, nil
}

func (o *rpcOptions) prepareCallsLoad(ctx context.Context, t *target, ref string, c *common, perSecond float64) (*refsLoad, error) {
	p, err := o.prepareCalls(ctx, t, ref, c.timeout)
	if err != nil {
		return nil, err
	}
	p.clients, p.rate = c.clients, perSecond
	run := func(ctx context.Context) (*outcome, error) { return p.run(ctx, c.duration) }
	return &refsLoad{run, p.node.Close, fmt.Sprintf("RefService.Resolve of %s at %s", ref, o.address)}, nil
}

func runRefs(ctx context.Context, env Env, t *target, o *common, prefix string, perSecond float64,
	prepare func(context.Context, *target, string, *common, float64) (*refsLoad, error)) error {
	p, err := prepare(ctx, t, prefix, o, perSecond)
	if err != nil {
		return err
	}
	defer p.close()
	began := time.Now()
	stop := progress(ctx, env.Stderr, func() string {
		return fmt.Sprintf("measuring: %v of %v", time.Since(began).Round(time.Second), o.duration)
	})
	out, err := p.run(ctx)
	stop()
	if err != nil {
		return err
	}
	r := refsReport{
		MBPerS:       round(rate(float64(out.bytes), 1e6, out.elapsed), 2),
		RequestsPerS: round(rate(float64(out.requests), 1, out.elapsed), 1),
		Requests:     out.requests,
		Errors:       out.failures.count(),
		Latency:      out.latency.summarize(),
	}
	out.failures.print(env.Stderr)
	if o.json {
		err = writeJSON(env.Stdout, r)
	} else {
		_, err = fmt.Fprintf(env.Stdout, "%s\n%s, %d clients, %v\n"+
			"  %-12s %.0f/s (%d, %d errors)\n  %-12s %v\n", t, p.about, o.clients, out.elapsed.Round(time.Millisecond),
			"requests", r.RequestsPerS, r.Requests, r.Errors, "latency", r.Latency)
	}
	return errors.Join(err, out.failures.err())
}

// prepareRefs asks once and makes the load that compares every answer with this one.
func prepareRefs(ctx context.Context, t *target, prefix string, timeout time.Duration) (*pings, error) {
	format, err := discover(ctx, t)
	if err != nil {
		return nil, err
	}
	p := &pings{target: t, request: t.post("git-upload-pack", "", lsRefs(format, prefix)), timeout: timeout}
	if p.want, err = p.first(ctx); err != nil {
		return nil, err
	}
	refs, err := parseRefs(p.want)
	if err != nil {
		return nil, err
	}
	for _, r := range refs {
		if strings.HasPrefix(r.name, prefix) {
			return p, nil
		}
	}
	return nil, fmt.Errorf("the server shows no ref that begins with %s", prefix)
}
