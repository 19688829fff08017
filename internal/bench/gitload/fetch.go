package gitload

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// fetchOptions are the flags of `packhorse-bench fetch`.
type fetchOptions struct {
	loadgen.Common
	depth     int
	have      string
	rate      float64
	serverPID int
	ops       string
	raw       bool
}

func FetchCommand(env loadgen.Env) *cobra.Command {
	var o fetchOptions
	cmd := &cobra.Command{
		Use:   "fetch URL",
		Short: "Measure bulk: repeat one fetch on many connections",
		Long: `Sends a fetch as git does (protocol v2), lets git verify the pack, and repeats the request on many connections. Bodies
are dropped, but for every response the status, the length, the side-bands and the final flush are checked. The request
before the measurement warms a cache.

The fetch:

  (default)       a clone of all branches and tags
  --depth N       a shallow clone of the default branch
  --have REV      a fetch of the default branch into a repository that is at REV, which is a branch, HEAD~20, or an
                  object ID

The loop is closed (each client sends a request after the last response) unless --rate is given. Then requests are due
at fixed times regardless of the server, and latency counts from the time when a request was due. ttfb_ms is the time
to the first byte of the response's body, latency_ms the time to its last.

With --server-pid the report has the CPU time and the anonymous memory of that process and its descendants. With --ops
it has allocations and disk writes from the metrics of a Packhorse server.

With --raw URL names any resource. It gets POST requests without a body, and only status and length are checked. Use it
to measure "packhorse-bench limit" with the same client.`,
		Example: `  packhorse-bench fetch http://127.0.0.1:8080/demo.git
  packhorse-bench fetch http://127.0.0.1:8080/demo.git --clients 30 --duration 30s --server-pid 4711 --json
  packhorse-bench fetch https://git.example.com/demo.git --depth 1 --rate 5
  packhorse-bench fetch http://127.0.0.1:8080/demo.git --have HEAD~20
  packhorse-bench fetch --raw http://127.0.0.1:8081/ --clients 30`,
		Args: cobra.ExactArgs(1),
	}
	o.Flags(cmd)
	f := cmd.Flags()
	f.IntVar(&o.depth, "depth", 0, "a shallow clone of this depth")
	f.StringVar(&o.have, "have", "", "an incremental fetch by a client at this revision")
	f.Float64Var(&o.rate, "rate", 0, "open loop: this many requests per second on all connections")
	f.IntVar(&o.serverPID, "server-pid", 0, "measure CPU and memory of this process and its descendants")
	f.StringVar(&o.ops, "ops", "", "the server's metrics, as http://127.0.0.1:9090/metrics")
	f.BoolVar(&o.raw, "raw", false, "no Git: load any resource and check status and length")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		t, err := loadgen.ParseTarget(args[0], o.Insecure)
		if err != nil {
			return err
		}
		if err := o.check(f); err != nil {
			return err
		}
		return loadgen.Interrupted(cmd.Context(), o.run(cmd.Context(), env, t))
	}
	return cmd
}

func (o *fetchOptions) check(f *pflag.FlagSet) error {
	switch {
	case o.depth < 0:
		return fmt.Errorf("--depth %d: must be positive", o.depth)
	case o.rate < 0:
		return fmt.Errorf("--rate %v: must be positive", o.rate)
	case o.raw && (o.depth != 0 || o.have != ""):
		return errors.New("--raw excludes --depth and --have: it does not fetch with git")
	case o.depth != 0 && o.have != "":
		return errors.New("--depth and --have exclude each other")
	}
	return o.Common.Check(f)
}

func (o *fetchOptions) run(ctx context.Context, env loadgen.Env, t *loadgen.Target) error {
	load, about, err := o.prepare(ctx, env, t)
	if err != nil {
		return err
	}
	load.Conns, load.Duration, load.Arrivals = o.Clients, o.Duration, loadgen.FixedRate(o.rate)

	before, err := loadgen.Scrape(ctx, o.ops)
	if err != nil {
		return err
	}
	tree, err := loadgen.WatchTree(o.serverPID)
	if err != nil {
		return err
	}
	defer tree.Stop()
	stop := loadgen.Measuring(ctx, env.Stderr, o.Duration)
	out, err := load.Run(ctx)
	stop()
	usage := tree.Stop()
	if err != nil {
		return err
	}
	after, err := loadgen.Scrape(ctx, o.ops)
	if err != nil {
		return err
	}

	report := newFetchReport(out, usage, before, after)
	out.Failures.Print(env.Stderr)
	if o.JSON {
		err = loadgen.WriteJSON(env.Stdout, report)
	} else {
		fmt.Fprintf(env.Stdout, "%s\n%s, %d clients, %v\n", t, about, o.Clients, out.Elapsed.Round(time.Millisecond))
		report.print(env.Stdout)
	}
	return errors.Join(err, out.Failures.Err())
}

// prepare returns the load: the request, and the check of its responses.
func (o *fetchOptions) prepare(ctx context.Context, env loadgen.Env,
	t *loadgen.Target) (load *loadgen.Load, about string, err error) {
	defer loadgen.Progress(ctx, env.Stderr, func() string { return "checking the pack with git" })()
	if o.raw {
		return prepareRaw(ctx, t, o.Timeout)
	}
	load, ref, err := PrepareFetch(ctx, t, o.depth, o.have, o.Timeout, nil)
	if err != nil {
		return nil, "", err
	}
	return load, fmt.Sprintf("pack of %.3f MB with %d objects, verified by git", float64(ref.pack)/1e6, ref.objects), nil
}

// PrepareFetch sends a fetch once, which warms caches, and lets git check the pack. It returns the load that repeats
// the request. Git checks no pack whose hash is in seen, which may be nil.
func PrepareFetch(ctx context.Context, t *loadgen.Target, depth int, have string, timeout time.Duration,
	seen map[[sha256.Size]byte]bool) (*loadgen.Load, *Reference, error) {
	refs, err := ListRefs(ctx, t, timeout)
	if err != nil {
		return nil, nil, err
	}
	c := &Check{Seen: seen}
	if c.Request, err = refs.Clone(depth); err != nil {
		return nil, nil, err
	}
	if have != "" {
		dir, err := os.MkdirTemp("", "packhorse-bench-")
		if err != nil {
			return nil, nil, err
		}
		defer os.RemoveAll(dir)
		if err := c.behind(ctx, t, have, filepath.Join(dir, "full.git")); err != nil {
			return nil, nil, err
		}
	}
	ref, err := c.Fetch(ctx, t, timeout)
	if err != nil {
		return nil, nil, err
	}
	load := loadgen.Repeat(t, t.Post("git-upload-pack", "", c.Request.Body()), nil, timeout)
	load.Check = FetchChecker(ref)
	return load, ref, nil
}

// firstHaves is the number of haves in git's first round.
const firstHaves = 16

// behind makes the request that of a client which is at a revision of the default branch. Only a clone, which goes to
// full, resolves all names of revisions: a branch, HEAD~20, an object ID.
func (c *Check) behind(ctx context.Context, t *loadgen.Target, have, full string) error {
	if _, err := RunGitWith(ctx, GitAccess(t), filepath.Dir(full), nil, "clone", "-q", "--bare", "--", t.String(),
		full); err != nil {
		return err
	}
	haves, err := RunGit(ctx, full, nil, "rev-list", fmt.Sprintf("-%d", firstHaves), "--end-of-options", have)
	if err != nil {
		return fmt.Errorf("--have %s: the repository has no such commit", have)
	}
	tip, err := RunGit(ctx, full, nil, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	c.Request.Wants, c.Request.Haves = []string{strings.TrimSpace(tip)}, strings.Fields(haves)
	c.Prepare = func(ctx context.Context, repo string) error {
		_, err := RunGit(ctx, repo, nil, "fetch", "-q", "--no-tags", "file://"+full, c.Request.Haves[0]+":refs/heads/have")
		return err
	}
	return nil
}

// FetchChecker returns a check of fetch responses. Without a reference, or after the first response with another
// layout, it parses every packet. The check is safe for concurrent use.
func FetchChecker(ref *Reference) func(*loadgen.Body) error {
	var walkAll atomic.Bool
	return func(b *loadgen.Body) error {
		r := ref
		if walkAll.Load() {
			r = nil
		}
		err := CheckFetch(b, r, &Walker{})
		if errors.Is(err, errLayout) {
			walkAll.Store(true)
		}
		return err
	}
}

// prepareRaw returns a load without Git.
func prepareRaw(ctx context.Context, t *loadgen.Target, timeout time.Duration) (*loadgen.Load, string, error) {
	load := loadgen.Repeat(t, t.Encode(http.MethodPost, t.Path, "", nil), nil, timeout)
	drain := func(b *loadgen.Body) (int64, error) {
		err := b.OK()
		if err == nil {
			err = b.Drain()
		}
		return b.Size, err
	}
	var size int64
	if err := t.Ask(ctx, load.Next(0), timeout, func(b *loadgen.Body) (err error) {
		size, err = drain(b)
		return err
	}); err != nil {
		return nil, "", err
	}
	load.Check = func(b *loadgen.Body) error {
		n, err := drain(b)
		if err == nil && n != size {
			err = fmt.Errorf("%d bytes, want %d as in the first response", n, size)
		}
		return err
	}
	return load, fmt.Sprintf("raw resource of %.3f MB", float64(size)/1e6), nil
}
