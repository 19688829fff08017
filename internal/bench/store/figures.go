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
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
	"github.com/packhorse-git/packhorse/internal/bench/writes"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
)

// push compares the latency of pushes.
func (w *stores) push(ctx context.Context) []world.Figure {
	plain, node := w.pair(ctx)
	create, read := w.roundTrips(ctx)
	var refs, nodeRefs loadgen.Samples // times until the refs were read
	latency := func(s *server, refs *loadgen.Samples) func() float64 {
		p := s.pusher("app", "topic", w.base)
		return func() float64 {
			var all loadgen.Samples
			for range w.pushes {
				took, first, err := p.Push(ctx)
				world.Check(err)
				all, *refs = append(all, took), append(*refs, first)
			}
			return all.Summarize().P50
		}
	}
	before := world.Must(node.Metrics(ctx))
	p, n, _ := world.Compare(w.rounds, latency(plain, &refs), latency(node, &nodeRefs))
	d := world.Must(node.Metrics(ctx)).Since(before)
	limit := 2*create + 5
	return []world.Figure{world.NewFigure("latency added to a push", "<= 2 round trips + 5 ms", n-p, n-p <= limit,
		"%.1f ms of %.1f (refs %.1f), plain %.1f (refs %.1f), limit %.1f, create %.1f, read %.1f, %.1f requests", n-p, n,
		nodeRefs.Summarize().P50, p, refs.Summarize().P50, limit, create, read,
		d.Sum("packhorse_store_requests_total")/float64(len(nodeRefs)))}
}

// roundTrips returns the medians of requests to the storage in milliseconds: to create a small object, and to read an
// absent one.
func (w *stores) roundTrips(ctx context.Context) (create, read float64) {
	var creates, reads loadgen.Samples
	b := world.Must(w.bucket())
	body := make([]byte, 2000)
	for i := range 41 {
		key, begun := fmt.Sprint("bench/", i), time.Now()
		if _, _, err := b.Get(ctx, key, 1); !errors.Is(err, bucket.ErrNotFound) {
			world.Check(fmt.Errorf("reading an absent object: %w", err))
		}
		reads = append(reads, time.Since(begun))
		begun = time.Now()
		world.Check(b.Create(ctx, key, body))
		creates = append(creates, time.Since(begun))
	}
	return creates[1:].Summarize().P50, reads[1:].Summarize().P50 // the first ones connect
}

// pushClients is the number of clients of pushRate.
const pushClients = 8

// pushRate counts pushes per second to one repository through two nodes, and to many repositories.
func (w *stores) pushRate(ctx context.Context) []world.Figure {
	plain, a := w.pair(ctx)
	b := w.node(ctx, "b")
	var busy atomic.Int64
	one := func(even, odd *server) func() float64 {
		pushers := make([][]*gitload.Pusher, pushClients)
		for i := range pushers {
			pushers[i] = []*gitload.Pusher{[]*server{even, odd}[i%2].pusher("app", fmt.Sprint("client", i), w.base)}
		}
		return func() float64 { return w.rate(ctx, pushers, &busy) }
	}
	many := func(s *server) func() float64 {
		pushers := make([][]*gitload.Pusher, pushClients)
		for i := range w.repositories {
			c := i % pushClients
			pushers[c] = append(pushers[c], s.pusher(fmt.Sprint("r", i), "topic", w.base))
		}
		return func() float64 { return w.rate(ctx, pushers, &busy) }
	}
	p, n, _ := world.Compare(w.rounds, one(plain, plain), one(a, b))
	figures := []world.Figure{world.NewFigure("pushes/s to one repository", ">= 50", n, n >= 50,
		"%.1f through two nodes, %d refused in all runs, plain %.1f", n, busy.Swap(0), p)}
	p, n, ratio := world.Compare(w.rounds, many(plain), many(a))
	return append(figures, world.NewFigure(fmt.Sprintf("pushes/s to %d repositories against plain", w.repositories),
		">= 0.7", ratio, ratio >= 0.7, "%.2f (%.1f, plain %.1f, %d refused)", ratio, n, p, busy.Load()))
}

// commitRate compares commits by calls with pushes, in a store.
func (w *stores) commitRate(ctx context.Context) []world.Figure {
	node := w.node(ctx, "node")
	c := gitload.NewClient(node.URL, node.token)
	defer c.Close()
	pushers := make([][]*gitload.Pusher, pushClients)
	for i := range pushers {
		pushers[i] = []*gitload.Pusher{node.pusher("app", fmt.Sprint("client", i), w.base)}
	}
	world.Check(c.Put(ctx, "app", "called", w.base.ID, "first", "first\n"))
	var busy atomic.Int64
	peer, ours, ratio := world.Compare(w.rounds, func() float64 { return w.rate(ctx, pushers, &busy) },
		func() float64 { return writes.Commits(ctx, c, "app", "called", callers, w.duration) })
	return []world.Figure{world.NewFigure("commits/s against pushes/s", ">= 15", ratio, ratio >= 15,
		"%.1f (%.0f commits/s of %d callers, %.0f pushes/s of %d clients)", ratio, ours, callers, peer, pushClients)}
}

// callers is the number of callers of commitRate.
const callers = 32

// rate returns the pushes per second of clients. Each pushes to its repositories in turn. busy counts pushes that are
// refused with status 503, which the clients repeat.
func (w *stores) rate(ctx context.Context, clients [][]*gitload.Pusher, busy *atomic.Int64) float64 {
	var n, next atomic.Int64
	took := world.Together(ctx, len(clients), func(ctx context.Context) error {
		pushers := clients[next.Add(1)-1]
		begun := time.Now()
		for i := 0; len(pushers) > 0 && time.Since(begun) < w.duration && ctx.Err() == nil; i++ {
			_, _, err := pushers[i%len(pushers)].Push(ctx)
			switch refusal, ok := errors.AsType[*loadgen.HTTPError](err); {
			case err == nil:
				n.Add(1)
			case ok && refusal.Status == http.StatusServiceUnavailable:
				busy.Add(1)
			default:
				return err
			}
		}
		return ctx.Err()
	})
	return float64(n.Load()) / took.Seconds()
}

// clone compares cached clones.
func (w *stores) clone(ctx context.Context) []world.Figure {
	p, n, ratio := w.compareLoads(ctx, gitload.FetchCommand, "mb_per_s", "large")
	return []world.Figure{world.NewFigure("throughput of cached clones against plain", ">= 0.97", ratio, ratio >= 0.97,
		"%.3f (%.0f MB/s, plain %.0f MB/s)", ratio, n, p)}
}

// compareLoads runs a command of packhorse-bench for both servers, and compares a value of its JSON.
func (w *stores) compareLoads(ctx context.Context, command func(loadgen.Env) *cobra.Command, key, repo string,
	args ...string) (p, n, ratio float64) {
	plain, node := w.pair(ctx)
	load := func(s *server) func() float64 {
		return func() float64 {
			var out bytes.Buffer
			env := w.env
			env.Stdout = &out
			cmd := command(env)
			cmd.SetArgs(append([]string{s.URL + "/" + repo + ".git", "--json", "--clients", fmt.Sprint(w.clients),
				"--duration", w.duration.String()}, args...))
			cmd.SetOut(io.Discard)
			cmd.SilenceUsage, cmd.SilenceErrors = true, true
			world.Check(cmd.ExecuteContext(ctx))
			var values map[string]any
			world.Check(json.Unmarshal(out.Bytes(), &values))
			v, _ := values[key].(float64)
			return v
		}
	}
	return world.Compare(w.rounds, load(plain), load(node))
}

// lsRefs compares ls-refs, and counts the freshness checks of many clients at once.
func (w *stores) lsRefs(ctx context.Context) []world.Figure {
	p, n, ratio := w.compareLoads(ctx, gitload.RefsCommand, "requests_per_s", "app", "--prefix", "refs/heads/main")
	node := w.node(ctx, "burst")
	t := world.Must(loadgen.ParseTarget(node.URL+"/app.git", false))
	request := t.Post("git-upload-pack", "", gitload.LsRefs(git.SHA1, "refs/heads/main"))
	world.Must(t.AskAll(ctx, request, time.Minute)) // the node then knows the repository
	var checks []float64
	for range w.rounds {
		before := world.Must(node.Metrics(ctx))
		burst := loadgen.Repeat(t, request, nil, time.Minute)
		burst.Conns, burst.Count, burst.Connect = w.burst, w.burst, true
		world.Check(world.Must(burst.Run(ctx)).Failures.Detail())
		d := world.Must(node.Metrics(ctx)).Since(before)
		const metric = "packhorse_store_checks_total"
		checks = append(checks, d.Sum(metric)-d.Sum(metric, `result="joined"`))
	}
	most := loadgen.Median(checks)
	return []world.Figure{
		world.NewFigure("ls-refs/s against plain", ">= 0.5", ratio, ratio >= 0.5, "%.2f (%.0f/s, plain %.0f/s)", ratio, n, p),
		world.NewFigure(fmt.Sprintf("freshness checks of %d clients at once", w.burst), "<= 2", most, most <= 2, "%.0f",
			checks),
	}
}

// firstClone compares clones through nodes with an empty cache with the next clone through the same node.
func (w *stores) firstClone(ctx context.Context) []world.Figure {
	var node *server
	round := 0
	clone := func() float64 {
		to := filepath.Join(w.Dir, "clone.git")
		defer os.RemoveAll(to)
		begun := time.Now()
		world.Must(gitload.RunGit(ctx, w.Dir, nil, "clone", "-q", "--bare", node.URL+"/large", to))
		return time.Since(begun).Seconds()
	}
	first, next, _ := world.Compare(w.rounds, func() float64 {
		round++
		node = w.node(ctx, fmt.Sprint("node", round))
		return clone()
	}, clone)
	ratio := first / next
	return []world.Figure{world.NewFigure(fmt.Sprintf("first clone of %d MB on an empty node against a warm one",
		w.megabytes), "<= 1.5", ratio, ratio <= 1.5, "%.2f (%.2f s, warm %.2f s)", ratio, first, next)}
}

// manyRefs measures pushes to a repository with very many refs, and the memory of the server.
func (w *stores) manyRefs(ctx context.Context) []world.Figure {
	node := w.node(ctx, "node")
	watch := world.Must(loadgen.WatchTree(node.Pid))
	defer watch.Stop()
	p := node.pusher("refs", "topic", world.Must(w.tip(ctx, "refs")))
	push := func() {
		_, _, err := p.Push(ctx)
		world.Check(err)
	}
	push() // copies the repository
	var all, ours []float64
	for range min(w.pushes, 21) { // each client reads all refs
		before := world.Must(node.Metrics(ctx))
		push()
		d := world.Must(node.Metrics(ctx)).Since(before)
		ms := 1000 * d.Sum("packhorse_push_seconds_sum")
		all = append(all, ms)
		ours = append(ours, ms-1000*d.Sum("packhorse_git_seconds_sum", `subcommand="receive-pack"`))
	}
	memory, own := float64(watch.Stop().Rss)/1e6, loadgen.Median(ours)
	return []world.Figure{
		world.NewFigure(fmt.Sprintf("%d refs: our part of a push", w.refs), "<= 100 ms", own, own <= 100,
			"%.1f ms of %.1f ms, the rest is git receive-pack", own, loadgen.Median(all)),
		world.NewFigure(fmt.Sprintf("%d refs: resident memory of the server", w.refs), "<= 200 MB", memory, memory <= 200,
			"at most %.0f MB", memory),
	}
}
