package bench

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
)

// fetchOptions are the flags of `packhorse-bench fetch`.
type fetchOptions struct {
	common
	what      what
	rate      float64
	serverPID int
	ops       string
	raw       bool
	protocol  string
}

func fetchCommand(env Env) *cobra.Command {
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
	o.flags(cmd)
	f := cmd.Flags()
	f.IntVar(&o.what.depth, "depth", 0, "record a shallow fetch of this depth")
	f.StringVar(&o.what.have, "have", "", "record an incremental fetch by a client that is at this revision")
	f.Float64Var(&o.rate, "rate", 0, "open loop: this many requests a second in all")
	f.StringVar(&o.protocol, "protocol", "2", "Git's protocol version: 0, 1 or 2")
	f.IntVar(&o.serverPID, "server-pid", 0, "measure CPU and memory of this process and its descendants")
	f.StringVar(&o.ops, "ops", "", "the server's metrics (default: http://127.0.0.1:9090/metrics if the server is on this machine)")
	f.BoolVar(&o.raw, "raw", false, "no Git: load any resource and check status and length")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		t, err := parseTarget(args[0], o.insecure)
		if err != nil {
			return err
		}
		if err := o.check(); err != nil {
			return err
		}
		t.protocol = o.protocol
		return interrupted(cmd.Context(), o.run(cmd.Context(), env, t))
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
	case o.raw && o.what != (what{}):
		return errors.New("--raw goes without --depth and --have: nothing is fetched as git does it")
	}
	return o.common.check()
}

func (o *fetchOptions) run(ctx context.Context, env Env, t *target) error {
	load, about, err := o.prepare(ctx, env, t)
	if err != nil {
		return err
	}
	load.clients, load.duration, load.timeout, load.rate = o.clients, o.duration, o.timeout, o.rate

	scraper := newScraper(t, o.ops)
	before, err := scraper.read(ctx)
	if err != nil {
		return err
	}
	tree, err := watchTree(o.serverPID)
	if err != nil {
		return err
	}
	defer tree.stop()
	began := time.Now()
	stop := progress(ctx, env.Stderr, func() string {
		return fmt.Sprintf("measuring: %v of %v", time.Since(began).Round(time.Second), o.duration)
	})
	out, err := load.run(ctx, nil)
	stop()
	usage := tree.stop()
	if err != nil {
		return err
	}
	after, err := scraper.read(ctx)
	if err != nil {
		return err
	}

	report := newFetchReport(out)
	report.usage(out, usage)
	report.metrics(out, before, after)
	out.failures.print(env.Stderr)
	if o.json {
		err = writeJSON(env.Stdout, report)
	} else {
		fmt.Fprintf(env.Stdout, "%s\n%s, %d clients, %v\n", t, about, o.clients, out.elapsed.Round(time.Millisecond))
		report.print(env.Stdout)
	}
	return errors.Join(err, out.failures.err())
}

// prepare makes the load: what is asked for and how an answer is checked.
func (o *fetchOptions) prepare(ctx context.Context, env Env, t *target) (load *replay, about string, err error) {
	stop := progress(ctx, env.Stderr, func() string { return "recording the request with git" })
	defer func() { stop() }()
	if o.raw {
		return prepareRaw(ctx, t, o.timeout)
	}
	load, ref, err := prepareFetch(ctx, t, o.what, o.timeout)
	if err != nil {
		return nil, "", err
	}
	return load, fmt.Sprintf("pack of %.3f MB with %d objects, verified by git", float64(ref.pack)/1e6, ref.objects), nil
}

// prepareFetch records a fetch, verifies its pack, and asks once by itself, which leaves caches warm.
func prepareFetch(ctx context.Context, t *target, w what, timeout time.Duration) (*replay, *reference, error) {
	dir, err := os.MkdirTemp("", "packhorse-bench-")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	rec, err := record(ctx, t, w, dir)
	if err != nil {
		return nil, nil, err
	}
	request := t.post("git-upload-pack", rec.encoding, rec.body)
	ref, err := warm(ctx, t, request, rec, filepath.Join(dir, "repo.git"), timeout)
	if err != nil {
		return nil, nil, err
	}
	return &replay{target: t, next: func() []byte { return request }, check: fetchChecker(t, ref)}, ref, nil
}

// fetchChecker makes a check of fetch answers. Without a reference, or from the first answer on that does not have its layout,
// every packet is followed. The check is safe for concurrent use.
func fetchChecker(t *target, ref *reference) func(*body, head, func()) error {
	var walkAll atomic.Bool
	return func(b *body, h head, firstByte func()) error {
		r := ref
		if walkAll.Load() {
			r = nil
		}
		w := walker{older: t.older()}
		err := checkFetch(b, h, r, &w, firstByte)
		if errors.Is(err, errLayout) {
			walkAll.Store(true)
		}
		return err
	}
}

// warm asks once. A pack that differs from the one that git has verified while it was recorded (a server without a cache may
// pack anew) goes through git index-pack, so what the measurement is compared with is always a verified answer.
func warm(ctx context.Context, t *target, request []byte, rec *recording, repo string, timeout time.Duration) (*reference, error) {
	hash := sha256.New()
	w := walker{older: t.older(), data: func(p []byte) { hash.Write(p) }}
	if err := askOnce(ctx, t, request, timeout, &w); err != nil {
		return nil, fmt.Errorf("asking the server again for what git got: %w", err)
	}
	if [sha256.Size]byte(hash.Sum(nil)) == rec.pack {
		return w.reference(), nil
	}
	pr, pw := io.Pipe()
	verified := make(chan error, 1)
	go func() {
		err := indexPack(ctx, repo, pr)
		pr.CloseWithError(io.ErrClosedPipe)
		verified <- err
	}()
	w = walker{older: t.older(), data: func(p []byte) { pw.Write(p) }} //nolint:errcheck // index-pack's own error says why it stopped reading
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
func askOnce(ctx context.Context, t *target, request []byte, timeout time.Duration, w *walker) error {
	return single(ctx, t, request, timeout, func(b *body, h head, firstByte func()) error {
		return checkFetch(b, h, nil, w, firstByte)
	})
}

// single runs one request of a replay.
func single(ctx context.Context, t *target, request []byte, timeout time.Duration, check func(*body, head, func()) error) error {
	left := [][]byte{request}
	one := &replay{target: t, clients: 1, timeout: timeout, check: check, next: func() (b []byte) {
		if len(left) > 0 {
			b, left = left[0], nil
		}
		return b
	}}
	out, err := one.run(ctx, nil)
	if err == nil && out.requests == 0 {
		err = errors.New(out.failures.first[0])
	}
	return err
}

// prepareRaw makes a load without Git.
func prepareRaw(ctx context.Context, t *target, timeout time.Duration) (*replay, string, error) {
	request := t.post("", "", nil)
	var size int64
	raw := func(b *body, h head, firstByte func()) error {
		if h.status != 200 {
			return statusError(b, h)
		}
		if _, err := b.next(frameRead); err != nil && err != io.EOF {
			return err
		}
		firstByte()
		return b.drain()
	}
	err := single(ctx, t, request, timeout, func(b *body, h head, firstByte func()) error {
		err := raw(b, h, firstByte)
		size = b.size
		return err
	})
	if err != nil {
		return nil, "", err
	}
	check := func(b *body, h head, firstByte func()) error {
		if err := raw(b, h, firstByte); err != nil {
			return err
		}
		if b.size != size {
			return fmt.Errorf("%d bytes, the first answer had %d", b.size, size)
		}
		return nil
	}
	return &replay{target: t, next: func() []byte { return request }, check: check},
		fmt.Sprintf("raw resource of %.3f MB", float64(size)/1e6), nil
}
