package gitload

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// fetchOptions are the flags of `packhorse-bench fetch`.
type fetchOptions struct {
	loadgen.Common
	what      FetchSpec
	rate      float64
	serverPID int
	ops       string
	raw       bool
	protocol  string
}

func FetchCommand(env loadgen.Env) *cobra.Command {
	var o fetchOptions
	cmd := &cobra.Command{
		Use:   "fetch URL",
		Short: "Measure bulk: replay one fetch on many connections",
		Long: `Records one fetch of stock git, lets git verify the pack, and replays the request on many connections. Bodies are
dropped, but for every response the status, the length, the side-bands and the final flush are checked. One request
before the measurement warms a cache.

The recorded fetch:

  (default)       a clone of all branches and tags
  --depth N       a shallow clone of the default branch
  --have REV      a fetch of the default branch into a repository that is at REV, which is a branch, HEAD~20, or an
                  object ID
  both            the same in a shallow repository

--protocol is the version of Git's protocol for the recording and the replay.

The loop is closed (each client sends a request after the last response) unless --rate is given. Then requests are due
at fixed times regardless of the server, and latency counts from the time when a request was due. ttfb_ms is the time
to the first byte of the response's body, latency_ms the time to its last.

With --server-pid the report has the CPU time and the anonymous memory of that process and its descendants. For a
Packhorse server on this machine, or with --ops, it has allocations and disk writes from the server's metrics.

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
	f.IntVar(&o.what.depth, "depth", 0, "record a shallow fetch of this depth")
	f.StringVar(&o.what.have, "have", "", "record an incremental fetch by a client at this revision")
	f.Float64Var(&o.rate, "rate", 0, "open loop: this many requests per second on all connections")
	f.StringVar(&o.protocol, "protocol", "2", "Git's protocol version: 0, 1 or 2")
	f.IntVar(&o.serverPID, "server-pid", 0, "measure CPU and memory of this process and its descendants")
	f.StringVar(&o.ops, "ops", "",
		"the server's metrics (default: http://127.0.0.1:9090/metrics if the server is on this machine)")
	f.BoolVar(&o.raw, "raw", false, "no Git: load any resource and check status and length")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		t, err := loadgen.ParseTarget(args[0], o.Insecure)
		if err != nil {
			return err
		}
		if err := o.check(); err != nil {
			return err
		}
		t.Protocol = o.protocol
		return loadgen.Interrupted(cmd.Context(), o.run(cmd.Context(), env, t))
	}
	return cmd
}

func (o *fetchOptions) check() error {
	switch {
	case o.what.depth < 0:
		return fmt.Errorf("--depth %d: must be positive", o.what.depth)
	case o.rate < 0:
		return fmt.Errorf("--rate %v: must be positive", o.rate)
	case o.protocol != "0" && o.protocol != "1" && o.protocol != "2":
		return fmt.Errorf("--protocol %s: want 0, 1 or 2", o.protocol)
	case o.raw && o.what != (FetchSpec{}):
		return errors.New("--raw excludes --depth and --have: it does not fetch with git")
	}
	return o.Common.Check()
}

func (o *fetchOptions) run(ctx context.Context, env loadgen.Env, t *loadgen.Target) error {
	load, about, err := o.prepare(ctx, env, t)
	if err != nil {
		return err
	}
	load.Clients, load.Duration, load.Timeout, load.Rate = o.Clients, o.Duration, o.Timeout, o.rate

	scraper := loadgen.NewScraper(t, o.ops)
	before, err := scraper.Read(ctx)
	if err != nil {
		return err
	}
	tree, err := loadgen.WatchTree(o.serverPID)
	if err != nil {
		return err
	}
	defer tree.Stop()
	began := time.Now()
	stop := loadgen.Progress(ctx, env.Stderr, func() string {
		return fmt.Sprintf("measuring: %v of %v", time.Since(began).Round(time.Second), o.Duration)
	})
	out, err := load.Run(ctx, nil)
	stop()
	usage := tree.Stop()
	if err != nil {
		return err
	}
	after, err := scraper.Read(ctx)
	if err != nil {
		return err
	}

	report := newFetchReport(out)
	report.usage(out, usage)
	report.metrics(out, before, after)
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
	t *loadgen.Target) (load *loadgen.Replay, about string, err error) {
	stop := loadgen.Progress(ctx, env.Stderr, func() string { return "recording the request with git" })
	defer func() { stop() }()
	if o.raw {
		return PrepareRaw(ctx, t, o.Timeout)
	}
	load, ref, err := prepareFetch(ctx, t, o.what, o.Timeout)
	if err != nil {
		return nil, "", err
	}
	return load, fmt.Sprintf("pack of %.3f MB with %d objects, verified by git", float64(ref.pack)/1e6, ref.objects), nil
}

// prepareFetch records a fetch, verifies its pack, and sends one request, which warms caches.
func prepareFetch(ctx context.Context, t *loadgen.Target, w FetchSpec,
	timeout time.Duration) (*loadgen.Replay, *Reference, error) {
	dir, err := os.MkdirTemp("", "packhorse-bench-")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	rec, err := Record(ctx, t, w, dir)
	if err != nil {
		return nil, nil, err
	}
	request := t.Post("git-upload-pack", rec.Encoding, rec.Body)
	ref, err := Warm(ctx, t, request, rec, filepath.Join(dir, "repo.git"), timeout)
	if err != nil {
		return nil, nil, err
	}
	return &loadgen.Replay{Target: t, Next: func() []byte { return request }, Check: FetchChecker(t, ref)}, ref, nil
}

// FetchChecker returns a check of fetch responses. Without a reference, or after the first response with another
// layout, it parses every packet. The check is safe for concurrent use.
func FetchChecker(t *loadgen.Target, ref *Reference) func(*loadgen.Body, loadgen.Head, func()) error {
	var walkAll atomic.Bool
	return func(b *loadgen.Body, h loadgen.Head, firstByte func()) error {
		r := ref
		if walkAll.Load() {
			r = nil
		}
		w := Walker{older: t.Older()}
		err := CheckFetch(b, h, r, &w, firstByte)
		if errors.Is(err, errLayout) {
			walkAll.Store(true)
		}
		return err
	}
}

// Warm sends one request. The pack may differ from the one that git verified during the recording, if the server has no
// cache. Then git index-pack checks it, so that the reference of the measurement is always a verified response.
func Warm(ctx context.Context, t *loadgen.Target, request []byte, rec *Recording, repo string,
	timeout time.Duration) (*Reference, error) {
	hash := sha256.New()
	w := Walker{older: t.Older(), Data: func(p []byte) { hash.Write(p) }}
	if err := askOnce(ctx, t, request, timeout, &w); err != nil {
		return nil, fmt.Errorf("repeat the recorded request: %w", err)
	}
	if [sha256.Size]byte(hash.Sum(nil)) == rec.pack {
		return w.reference(), nil
	}
	pr, pw := io.Pipe()
	verified := make(chan error, 1)
	go func() {
		err := IndexPack(ctx, repo, pr)
		pr.CloseWithError(io.ErrClosedPipe)
		verified <- err
	}()
	//nolint:errcheck // index-pack's own error has the reason
	w = Walker{older: t.Older(), Data: func(p []byte) { pw.Write(p) }}
	err := askOnce(ctx, t, request, timeout, &w)
	pw.CloseWithError(err)
	if bad := <-verified; err == nil && bad != nil {
		err = fmt.Errorf("git does not accept the pack: %w", bad)
	}
	if err != nil {
		return nil, err
	}
	return w.reference(), nil
}

// askOnce sends one request on its own connection and parses every packet of the response.
func askOnce(ctx context.Context, t *loadgen.Target, request []byte, timeout time.Duration, w *Walker) error {
	return single(ctx, t, request, timeout, func(b *loadgen.Body, h loadgen.Head, firstByte func()) error {
		return CheckFetch(b, h, nil, w, firstByte)
	})
}

// single runs one request of a replay.
func single(ctx context.Context, t *loadgen.Target, request []byte, timeout time.Duration,
	check func(*loadgen.Body, loadgen.Head, func()) error) error {
	left := [][]byte{request}
	one := &loadgen.Replay{Target: t, Clients: 1, Timeout: timeout, Check: check, Next: func() (b []byte) {
		if len(left) > 0 {
			b, left = left[0], nil
		}
		return b
	}}
	out, err := one.Run(ctx, nil)
	if err == nil && out.Requests == 0 {
		err = errors.New(out.Failures.First[0])
	}
	return err
}

// PrepareRaw returns a load without Git.
func PrepareRaw(ctx context.Context, t *loadgen.Target, timeout time.Duration) (*loadgen.Replay, string, error) {
	request := t.Post("", "", nil)
	var size int64
	raw := func(b *loadgen.Body, h loadgen.Head, firstByte func()) error {
		if h.Status != 200 {
			return StatusError(b, h)
		}
		if _, err := b.Next(loadgen.FrameRead); err != nil && err != io.EOF {
			return err
		}
		firstByte()
		return b.Drain()
	}
	err := single(ctx, t, request, timeout, func(b *loadgen.Body, h loadgen.Head, firstByte func()) error {
		err := raw(b, h, firstByte)
		size = b.Size
		return err
	})
	if err != nil {
		return nil, "", err
	}
	check := func(b *loadgen.Body, h loadgen.Head, firstByte func()) error {
		if err := raw(b, h, firstByte); err != nil {
			return err
		}
		if b.Size != size {
			return fmt.Errorf("%d bytes, want %d as in the first response", b.Size, size)
		}
		return nil
	}
	return &loadgen.Replay{Target: t, Next: func() []byte { return request }, Check: check},
		fmt.Sprintf("raw resource of %.3f MB", float64(size)/1e6), nil
}
