package gitload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

func RefsCommand(env loadgen.Env) *cobra.Command {
	var (
		o         loadgen.Common
		prefix    string
		perSecond float64
		rpc       RPCOptions
	)
	cmd := &cobra.Command{
		Use:   "refs URL --prefix REF",
		Short: "Measure ref look-ups: ls-refs of one ref, many times",
		Long: `Requests the refs that begin with REF (protocol v2, ls-refs with peel and symrefs) repeatedly on many connections.
The first response must have such a ref, and all later ones must be identical.

The loop is closed unless --rate is given. Then latency counts from the time when a request was due. "packhorse-bench
mkrefs" makes a repository with very many refs.

With --rpc the requests go to a storage node, with the control API: RefService.Resolve of REF, which
is a full name then. URL only names the repository and gets no requests.`,
		Example: `  packhorse-bench refs http://127.0.0.1:8080/refs.git --prefix refs/heads/main
  packhorse-bench refs http://127.0.0.1:8080/refs.git --prefix refs/pull/77/ --clients 1 --json
  packhorse-bench refs http://127.0.0.1:8080/refs.git --prefix refs/heads/main --rate 1000
  packhorse-bench refs http://127.0.0.1:8080/refs.git --prefix refs/heads/main --rpc unix:/run/packhorse/node.sock`,
		Args: cobra.ExactArgs(1),
	}
	o.Flags(cmd)
	cmd.Flags().StringVar(&prefix, "prefix", "", "beginning of the names of the refs (required)")
	cmd.Flags().Float64Var(&perSecond, "rate", 0, "open loop: this many requests per second on all connections")
	rpc.Flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		t, err := loadgen.ParseTarget(args[0], o.Insecure)
		if err != nil {
			return err
		}
		if err := o.Check(cmd.Flags()); err != nil {
			return err
		}
		switch {
		case prefix == "" || strings.ContainsAny(prefix, " \n\x00") || len(prefix) > 1000:
			return errors.New("--prefix: want the name of a ref or its beginning, such as refs/heads/main")
		case perSecond < 0:
			return fmt.Errorf("--rate %v: must be positive", perSecond)
		}
		if err := rpc.Check(); err != nil {
			return err
		}
		ctx := cmd.Context()
		return loadgen.Interrupted(ctx, runRefs(ctx, env, t, &o, &rpc, prefix, perSecond))
	}
	return cmd
}

// runRefs measures ls-refs, or the control API.
func runRefs(ctx context.Context, env loadgen.Env, t *loadgen.Target, o *loadgen.Common, rpc *RPCOptions, prefix string,
	perSecond float64) error {
	p, about, err := rpc.prepare(ctx, t, prefix, o.Timeout)
	if err != nil {
		return err
	}
	p.Conns, p.Arrivals, p.Duration, p.Connect = o.Clients, loadgen.FixedRate(perSecond), o.Duration, true
	stop := loadgen.Measuring(ctx, env.Stderr, o.Duration)
	out, err := p.Run(ctx)
	stop()
	if err != nil {
		return err
	}
	r := newLoadReport(out)
	out.Failures.Print(env.Stderr)
	if o.JSON {
		err = loadgen.WriteJSON(env.Stdout, r)
	} else {
		_, err = fmt.Fprintf(env.Stdout, "%s\n%s, %d clients, %v\n"+
			"  %-12s %.0f/s (%d, %d errors)\n  %-12s %v\n", t, about, o.Clients, out.Elapsed.Round(time.Millisecond),
			"requests", r.RequestsPerS, r.Requests, r.Errors, "latency", r.Latency)
	}
	return errors.Join(err, out.Failures.Err())
}

// prepareRefs sends one request and returns the load that compares every response with this one.
func prepareRefs(ctx context.Context, t *loadgen.Target, prefix string, timeout time.Duration) (*loadgen.Load, string,
	error) {
	_, format, err := Discover(ctx, t)
	if err != nil {
		return nil, "", err
	}
	request := t.Post("git-upload-pack", "", LsRefs(format, prefix))
	want, err := t.AskAll(ctx, request, timeout)
	if err != nil {
		return nil, "", err
	}
	refs, err := ParseRefs(want)
	if err != nil {
		return nil, "", err
	}
	if !slices.ContainsFunc(refs, func(r ref) bool { return strings.HasPrefix(r.Name, prefix) }) {
		return nil, "", fmt.Errorf("the server shows no ref that begins with %s", prefix)
	}
	about := fmt.Sprintf("ls-refs of %s, responses of %d bytes", prefix, len(want))
	return loadgen.Repeat(t, request, want, timeout), about, nil
}
