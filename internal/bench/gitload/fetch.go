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
	what      What
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
		Long: `Records one fetch as stock git makes it, has git verify the pack, and replays the request on many
connections. Bodies are dropped, but of every response the status, the length, the side-bands and the final flush are
checked. One request that is not measured goes first, so a cache is warm.

Without --depth and --have it is a clone of all heads and tags; with --depth a shallow clone of the default branch; with
--have REV what a repository that is at REV fetches to be at the default branch's tip (REV is anything that a full clone
resolves: a branch, HEAD~20, an object ID). Both together: the same in a shallow repository. --protocol is the version of Git's
protocol that the fetch is recorded and replayed in.

The loop is closed (each client asks again when it has its answer) unless --rate is given: then requests are due at fixed
times whatever the server does, and latency counts from the time that a request was due. ttfb_ms runs to the first byte of
the response's body. latency_ms to its last.

With --server-pid the CPU seconds and the anonymous memory of that process and all below it are measured as well. From a
Packhorse server on this machine allocations and disk writes are read from its metrics (--ops tells where they are).

With --raw URL names any resource: it is POSTed to without a body, and status and length alone are checked. That is how
"packhorse-bench limit" is measured with the same client.`,
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
	f.StringVar(&o.what.have, "have", "", "record an incremental fetch by a client that is at this revision")
	f.Float64Var(&o.rate, "rate", 0, "open loop: this many requests a second in all")
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
		return fmt.Errorf("--depth %d: has to be positive", o.what.depth)
	case o.rate < 0:
		return fmt.Errorf("--rate %v: has to be positive", o.rate)
	case o.protocol != "0" && o.protocol != "1" && o.protocol != "2":
		return fmt.Errorf("--protocol %s: want 0, 1 or 2", o.protocol)
	case o.raw && o.what != (What{}):
		return errors.New("--raw goes without --depth and --have: nothing is fetched as git does it")
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

// prepare makes the load: what is asked for and how an answer is checked.
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

// prepareFetch records a fetch, verifies its pack, and asks once by itself, which leaves caches warm.
func prepareFetch(ctx context.Context, t *loadgen.Target, w What,
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

// FetchChecker makes a check of fetch answers. Without a reference, or from the first answer on that does not have its
// layout, every packet is followed. The check is safe for concurrent use.
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

// Warm asks once. A pack that differs from the one that git has verified while it was recorded (a server without a
// cache may pack anew) goes through git index-pack, so what the measurement is compared with is always a verified
// answer.
func Warm(ctx context.Context, t *loadgen.Target, request []byte, rec *Recording, repo string,
	timeout time.Duration) (*Reference, error) {
	hash := sha256.New()
	w := Walker{older: t.Older(), Data: func(p []byte) { hash.Write(p) }}
	if err := askOnce(ctx, t, request, timeout, &w); err != nil {
		return nil, fmt.Errorf("asking the server again for what git got: %w", err)
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
	//nolint:errcheck // index-pack's own error says why it stopped reading
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

// askOnce sends one request on a connection of its own and follows every packet of the answer.
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

// PrepareRaw makes a load without Git.
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
			return fmt.Errorf("%d bytes, the first answer had %d", b.Size, size)
		}
		return nil
	}
	return &loadgen.Replay{Target: t, Next: func() []byte { return request }, Check: check},
		fmt.Sprintf("raw resource of %.3f MB", float64(size)/1e6), nil
}
