package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
)

// push compares the latency of pushes.
func (w *stores) push(ctx context.Context) ([]world.Figure, error) {
	plain, node, err := w.pair(ctx)
	if err != nil {
		return nil, err
	}
	create, read, err := w.roundTrips(ctx)
	if err != nil {
		return nil, err
	}
	var refs, nodeRefs loadgen.Samples // times until the refs were read
	latency := func(s *server, refs *loadgen.Samples) func() (float64, error) {
		p := s.pusher("app", "topic", w.base)
		return func() (float64, error) {
			var all loadgen.Samples
			for range w.pushes {
				took, first, err := p.push(ctx)
				if err != nil {
					return 0, err
				}
				all, *refs = append(all, took), append(*refs, first)
			}
			return all.Summarize().P50, nil
		}
	}
	before, err := node.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	p, n, _, err := world.Compare(w.rounds, latency(plain, &refs), latency(node, &nodeRefs))
	if err != nil {
		return nil, err
	}
	after, err := node.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	limit := 2*create + 5
	requests := after.Since(before).Sum("packhorse_store_requests_total") / float64(len(nodeRefs))
	return []world.Figure{{What: "latency added to a push", Goal: "<= 2 round trips + 5 ms", Value: n - p,
		Got: fmt.Sprintf("%.1f ms of %.1f (refs %.1f), plain %.1f (refs %.1f), limit %.1f, create %.1f, read %.1f, "+
			"%.1f requests", n-p, n, nodeRefs.Summarize().P50, p, refs.Summarize().P50, limit, create, read, requests),
		Reached: n-p <= limit}}, nil
}

// roundTrips returns the medians of requests to the storage in milliseconds: to create a small object, and to read an
// absent one.
func (w *stores) roundTrips(ctx context.Context) (create, read float64, err error) {
	var creates, reads loadgen.Samples
	b, err := w.bucket()
	if err != nil {
		return 0, 0, err
	}
	body := make([]byte, 2000)
	for i := range 41 {
		key, begun := fmt.Sprint("bench/", i), time.Now()
		if _, _, err := b.Get(ctx, key, 1); !errors.Is(err, bucket.ErrNotFound) {
			return 0, 0, fmt.Errorf("reading an absent object: %w", err)
		}
		reads = append(reads, time.Since(begun))
		begun = time.Now()
		if err := b.Create(ctx, key, body); err != nil {
			return 0, 0, err
		}
		creates = append(creates, time.Since(begun))
	}
	return creates[1:].Summarize().P50, reads[1:].Summarize().P50, nil // the first ones connect
}

// pushClients is the number of clients of pushRate.
const pushClients = 8

// pushRate counts pushes per second to one repository through two nodes, and to many repositories.
func (w *stores) pushRate(ctx context.Context) ([]world.Figure, error) {
	plain, a, err := w.pair(ctx)
	if err != nil {
		return nil, err
	}
	b, err := w.node(ctx, "b")
	if err != nil {
		return nil, err
	}
	var busy atomic.Int64
	one := func(server func(i int) *server) func() (float64, error) {
		pushers := make([][]*pusher, pushClients)
		for i := range pushers {
			pushers[i] = []*pusher{server(i).pusher("app", fmt.Sprint("client", i), w.base)}
		}
		return func() (float64, error) { return w.rate(ctx, pushers, &busy) }
	}
	many := func(s *server) func() (float64, error) {
		pushers := make([][]*pusher, pushClients)
		for i := range w.repositories {
			c := i % pushClients
			pushers[c] = append(pushers[c], s.pusher(fmt.Sprint("r", i), "topic", w.base))
		}
		return func() (float64, error) { return w.rate(ctx, pushers, &busy) }
	}
	p, n, _, err := world.Compare(w.rounds, one(func(int) *server { return plain }), one(func(i int) *server {
		return []*server{a, b}[i%2]
	}))
	if err != nil {
		return nil, err
	}
	figures := []world.Figure{{What: "pushes/s to one repository", Goal: ">= 50", Value: n,
		Got: fmt.Sprintf("%.1f through two nodes, %d refused in all runs, plain %.1f", n, busy.Swap(0), p), Reached: n >= 50}}
	p, n, ratio, err := world.Compare(w.rounds, many(plain), many(a))
	if err != nil {
		return nil, err
	}
	return append(figures, world.Figure{What: fmt.Sprintf("pushes/s to %d repositories against plain", w.repositories),
		Goal: ">= 0.7", Value: ratio, Got: fmt.Sprintf("%.2f (%.1f, plain %.1f, %d refused)", ratio, n, p, busy.Load()),
		Reached: ratio >= 0.7}), nil
}

// rate returns the pushes per second of clients. Each pushes to its repositories in turn. busy counts pushes that are
// refused with status 503, which the clients repeat.
func (w *stores) rate(ctx context.Context, clients [][]*pusher, busy *atomic.Int64) (float64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var n atomic.Int64
	var running sync.WaitGroup
	begun := time.Now()
	for _, pushers := range clients {
		running.Go(func() {
			for i := 0; len(pushers) > 0 && time.Since(begun) < w.duration && ctx.Err() == nil; i++ {
				_, _, err := pushers[i%len(pushers)].push(ctx)
				switch refusal, ok := errors.AsType[*loadgen.HTTPError](err); {
				case err == nil:
					n.Add(1)
				case ok && refusal.Status == http.StatusServiceUnavailable:
					busy.Add(1)
				default:
					cancel(err)
				}
			}
		})
	}
	running.Wait()
	return float64(n.Load()) / time.Since(begun).Seconds(), context.Cause(ctx)
}

// clone compares cached clones.
func (w *stores) clone(ctx context.Context) ([]world.Figure, error) {
	p, n, ratio, err := w.compareLoads(ctx, gitload.FetchCommand, "mb_per_s", "large")
	if err != nil {
		return nil, err
	}
	return []world.Figure{{What: "throughput of cached clones against plain", Goal: ">= 0.97", Value: ratio,
		Got: fmt.Sprintf("%.3f (%.0f MB/s, plain %.0f MB/s)", ratio, n, p), Reached: ratio >= 0.97}}, nil
}

// compareLoads runs a command of packhorse-bench for both servers, and compares a value of its JSON.
func (w *stores) compareLoads(ctx context.Context, command func(loadgen.Env) *cobra.Command, key, repo string,
	args ...string) (p, n, ratio float64, err error) {
	plain, node, err := w.pair(ctx)
	if err != nil {
		return 0, 0, 0, err
	}
	load := func(s *server) func() (float64, error) {
		return func() (float64, error) {
			var out bytes.Buffer
			env := w.env
			env.Stdout = &out
			cmd := command(env)
			cmd.SetArgs(append([]string{s.URL + "/" + repo + ".git", "--json", "--clients", fmt.Sprint(w.clients),
				"--duration", w.duration.String()}, args...))
			cmd.SetOut(io.Discard)
			cmd.SilenceUsage, cmd.SilenceErrors = true, true
			if err := cmd.ExecuteContext(ctx); err != nil {
				return 0, err
			}
			var values map[string]any
			if err := json.Unmarshal(out.Bytes(), &values); err != nil {
				return 0, err
			}
			v, _ := values[key].(float64)
			return v, nil
		}
	}
	return world.Compare(w.rounds, load(plain), load(node))
}

// lsRefs compares ls-refs, and counts the freshness checks of many clients at once.
func (w *stores) lsRefs(ctx context.Context) ([]world.Figure, error) {
	p, n, ratio, err := w.compareLoads(ctx, gitload.RefsCommand, "requests_per_s", "app", "--prefix", "refs/heads/main")
	if err != nil {
		return nil, err
	}
	node, err := w.node(ctx, "burst")
	if err != nil {
		return nil, err
	}
	c := gitload.NewClient(node.URL, "")
	defer c.Close()
	if _, _, err := c.LsRefs(ctx, "app", "main"); err != nil { // the node then knows the repository
		return nil, err
	}
	t, err := loadgen.ParseTarget(node.URL+"/app.git", false)
	if err != nil {
		return nil, err
	}
	var checks []float64
	for range w.rounds {
		before, err := node.checks(ctx)
		if err != nil {
			return nil, err
		}
		burst := loadgen.Repeat(t, t.Post("git-upload-pack", "", gitload.LsRefs(git.SHA1, "refs/heads/main")), nil,
			time.Minute)
		burst.Conns, burst.Count, burst.Connect = w.burst, w.burst, true
		out, err := burst.Run(ctx)
		if err = errors.Join(err, out.Failures.Err()); err != nil {
			return nil, fmt.Errorf("%w: %v", err, out.Failures.First)
		}
		after, err := node.checks(ctx)
		if err != nil {
			return nil, err
		}
		checks = append(checks, after-before)
	}
	most := loadgen.Median(checks)
	return []world.Figure{
		{What: "ls-refs/s against plain", Goal: ">= 0.5", Value: ratio,
			Got: fmt.Sprintf("%.2f (%.0f/s, plain %.0f/s)", ratio, n, p), Reached: ratio >= 0.5},
		{What: fmt.Sprintf("freshness checks of %d clients at once", w.burst), Goal: "<= 2", Value: most,
			Got: fmt.Sprintf("%.0f", checks), Reached: most <= 2},
	}, nil
}

// checks returns the number of freshness checks, without those that joined another.
func (s *server) checks(ctx context.Context) (float64, error) {
	m, err := s.Metrics(ctx)
	return m.Sum("packhorse_store_checks_total") - m.Sum("packhorse_store_checks_total", `result="joined"`), err
}

// firstClone compares clones through nodes with an empty cache with the next clone through the same node.
func (w *stores) firstClone(ctx context.Context) ([]world.Figure, error) {
	var node *server
	round := 0
	clone := func() (float64, error) {
		to := filepath.Join(w.Dir, "clone.git")
		defer os.RemoveAll(to)
		begun := time.Now()
		_, err := gitload.RunGit(ctx, w.Dir, nil, "clone", "-q", "--bare", node.URL+"/large", to)
		return time.Since(begun).Seconds(), err
	}
	first, next, _, err := world.Compare(w.rounds, func() (_ float64, err error) {
		round++
		if node, err = w.node(ctx, fmt.Sprint("node", round)); err != nil {
			return 0, err
		}
		return clone()
	}, clone)
	if err != nil {
		return nil, err
	}
	ratio := first / next
	return []world.Figure{{What: fmt.Sprintf("first clone of %d MB on an empty node against a warm one", w.megabytes),
		Goal: "<= 1.5", Value: ratio, Got: fmt.Sprintf("%.2f (%.2f s, warm %.2f s)", ratio, first, next),
		Reached: ratio <= 1.5}}, nil
}

// manyRefs measures pushes to a repository with very many refs, and the memory of the server.
func (w *stores) manyRefs(ctx context.Context) ([]world.Figure, error) {
	node, err := w.node(ctx, "node")
	if err != nil {
		return nil, err
	}
	base, err := w.tip(ctx, "refs")
	if err != nil {
		return nil, err
	}
	watch, err := loadgen.WatchTree(node.Pid)
	if err != nil {
		return nil, err
	}
	defer watch.Stop()
	p := node.pusher("refs", "topic", base)
	if _, _, err := p.push(ctx); err != nil { // copies the repository
		return nil, err
	}
	spent := func() (all, inGit float64, err error) { // milliseconds
		m, err := node.Metrics(ctx)
		return m.Sum("packhorse_push_seconds_sum") * 1000,
			m.Sum("packhorse_git_seconds_sum", `subcommand="receive-pack"`) * 1000, err
	}
	var all, ours []float64
	for range min(w.pushes, 21) { // each client reads all refs
		before, gitBefore, err := spent()
		if err != nil {
			return nil, err
		}
		if _, _, err := p.push(ctx); err != nil {
			return nil, err
		}
		after, gitAfter, err := spent()
		if err != nil {
			return nil, err
		}
		all, ours = append(all, after-before), append(ours, after-before-(gitAfter-gitBefore))
	}
	memory := float64(watch.Stop().Rss) / 1e6
	return []world.Figure{
		{What: fmt.Sprintf("%d refs: our part of a push", w.refs), Goal: "<= 100 ms", Value: loadgen.Median(ours),
			Got:     fmt.Sprintf("%.1f ms of %.1f ms, the rest is git receive-pack", loadgen.Median(ours), loadgen.Median(all)),
			Reached: loadgen.Median(ours) <= 100},
		{What: fmt.Sprintf("%d refs: resident memory of the server", w.refs), Goal: "<= 200 MB", Value: memory,
			Got: fmt.Sprintf("at most %.0f MB", memory), Reached: memory <= 200},
	}, nil
}
