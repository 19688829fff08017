package writes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
	"github.com/packhorse-git/packhorse/internal/git"
)

// commit compares commits of one file with pushes of the same.
func (w *writes) commit(ctx context.Context) []world.Figure {
	clone := filepath.Join(w.Dir, "clone")
	world.Must(gitload.RunGit(ctx, w.Dir, nil, "clone", "-q", w.Repository(name), clone))
	access := world.Must(w.server.PushAccess(ctx))
	runGit(ctx, clone, "checkout", "-q", "-b", "pushed")
	world.Check(w.client.Put(ctx, name, "called", w.tip.ID, "first", "first\n"))
	var cpus [2][]float64
	n := 0
	measure := func(side int, each func(i int) time.Duration) float64 {
		var times loadgen.Samples
		var cpu time.Duration
		for range w.commits {
			n++
			cpu += w.tree.During(func() { times = append(times, each(n)) })
		}
		cpus[side] = append(cpus[side], loadgen.Milliseconds(cpu)/float64(w.commits))
		return times.Summarize().P50
	}
	push := func(i int) time.Duration {
		file := fmt.Sprintf("file%d", i%10)
		world.Check(os.WriteFile(filepath.Join(clone, file), fmt.Append(nil, i), 0o600))
		runGit(ctx, clone, "add", file)
		runGit(ctx, clone, "commit", "-q", "-m", file)
		return world.TimeOf(func() {
			world.Must(gitload.RunGitWith(ctx, access, clone, nil, "push", "-q", w.server.URL+"/"+name, "pushed"))
		})
	}
	call := func(i int) time.Duration {
		return world.TimeOf(func() {
			world.Check(w.client.Put(ctx, name, "called", "", fmt.Sprintf("file%d", i%10), strconv.Itoa(i)))
		})
	}
	peer, ours, _ := world.Compare(w.rounds, func() float64 { return measure(0, push) },
		func() float64 { return measure(1, call) })
	return []world.Figure{
		world.Ratio("CPU time of a commit", "ms", 0.10, loadgen.Median(cpus[1]), loadgen.Median(cpus[0])),
		world.Ratio("median time of a commit", "ms", 0.25, ours, peer),
	}
}

// rate compares commits per second with pushes per second.
func (w *writes) rate(ctx context.Context) []world.Figure {
	pushers := make([]*gitload.Pusher, w.clients)
	for i := range pushers {
		pushers[i] = gitload.NewPusher(w.server.URL, w.token, name, fmt.Sprint("client", i), w.tip)
	}
	pushes := func() float64 {
		return PerSecond(ctx, w.clients, w.duration, func(ctx context.Context, client, _ int) error {
			_, _, err := pushers[client].Push(ctx)
			return err
		})
	}
	world.Check(w.client.Put(ctx, name, "called", w.tip.ID, "first", "first\n"))
	peer, ours, r := world.Compare(w.rounds, pushes, func() float64 {
		return Commits(ctx, w.client, name, "called", w.callers, w.duration)
	})
	return []world.Figure{world.NewFigure("commits/s against pushes/s", ">= 10", r, r >= 10,
		"%.1f (%.0f commits/s of %d callers, %.0f pushes/s of %d clients)", r, ours, w.callers, peer, w.clients)}
}

// Commits returns the commits per second of callers to one branch. Each caller has a file of its own.
func Commits(ctx context.Context, c *gitload.Client, repo, branch string, callers int, duration time.Duration) float64 {
	return PerSecond(ctx, callers, duration, func(ctx context.Context, caller, n int) error {
		return c.Put(ctx, repo, branch, "", fmt.Sprint("caller", caller), strconv.Itoa(n))
	})
}

// PerSecond returns the calls per second of clients that each call again and again.
func PerSecond(ctx context.Context, clients int, duration time.Duration,
	call func(ctx context.Context, client, n int) error) float64 {
	var all, next atomic.Int64
	took := world.Together(ctx, clients, func(ctx context.Context) error {
		client, begun := int(next.Add(1)-1), time.Now()
		for n := 0; time.Since(begun) < duration; n++ {
			if err := call(ctx, client, n); err != nil {
				return err
			}
			all.Add(1)
		}
		return ctx.Err()
	})
	return float64(all.Load()) / took.Seconds()
}

// runGit runs git as an author.
func runGit(ctx context.Context, dir string, args ...string) {
	author := []string{"GIT_AUTHOR_NAME=B", "GIT_AUTHOR_EMAIL=b@localhost", "GIT_COMMITTER_NAME=B",
		"GIT_COMMITTER_EMAIL=b@localhost"}
	world.Must(gitload.RunGitWith(ctx, author, dir, nil, args...))
}

// merge compares merges of the history.
func (w *writes) merge(ctx context.Context) []world.Figure {
	out := world.Must(gitload.RunGit(ctx, w.Repository(name), nil, "log", "--min-parents=2", "--max-parents=2",
		"--format=%P", "-n", strconv.Itoa(w.merges), "HEAD"))
	var pairs [][2]string
	for line := range strings.Lines(out) {
		ours, theirs, _ := strings.Cut(strings.TrimSpace(line), " ")
		pairs = append(pairs, [2]string{ours, theirs})
	}
	if len(pairs) == 0 {
		world.Check(errors.New("the repository has no merges: set --repo"))
	}
	clean := 0
	ours := w.tree.During(func() { clean = world.Must(w.client.CheckMerges(ctx, name, pairs)) })
	peerClean, begun := 0, world.ChildrenCPU()
	for _, p := range pairs {
		if _, err := gitload.RunGit(ctx, w.Repository(name), nil, "merge-tree", "--write-tree", p[0], p[1]); err == nil {
			peerClean++
		}
	}
	peer := world.ChildrenCPU() - begun
	f := world.Ratio(fmt.Sprintf("CPU time of %d merges", len(pairs)), "ms", 0.4, loadgen.Milliseconds(ours),
		loadgen.Milliseconds(peer))
	f.Got += fmt.Sprintf(", %d without conflicts, of git %d", clean, peerClean)
	return []world.Figure{f}
}

// sample is the number of branches that git merges in the part check. A merge in a clone takes long.
const sample = 20

// check compares the check of open branches with merges in a clone.
func (w *writes) check(ctx context.Context) []world.Figure {
	history := strings.Fields(world.Must(gitload.RunGit(ctx, w.Repository(name), nil, "rev-list", "--first-parent", "-n",
		"50", "HEAD")))
	pairs := make([][2]string, w.branches)
	for i := range pairs {
		branch := fmt.Sprint("open", i)
		world.Check(w.client.Put(ctx, name, branch, history[i%len(history)], "added-by-"+branch, branch+"\n"))
		pairs[i] = [2]string{w.tip.ID, branch}
	}
	ours := w.tree.During(func() { world.Must(w.client.CheckMerges(ctx, name, pairs)) })
	clone, begun := filepath.Join(w.Dir, "clone"), world.ChildrenCPU()
	world.Must(gitload.RunGit(ctx, w.Dir, nil, "clone", "-q", "--shared", w.Repository(name), clone))
	n := min(sample, w.branches)
	for i := range n {
		runGit(ctx, clone, "checkout", "-q", "-B", "merged", w.tip.ID)
		runGit(ctx, clone, "merge", "-q", "--no-edit", fmt.Sprint("origin/open", i))
	}
	each, peer := loadgen.Milliseconds(ours)/float64(w.branches), loadgen.Milliseconds(world.ChildrenCPU()-begun)
	return []world.Figure{world.Ratio(fmt.Sprintf("CPU time to check each of %d branches", w.branches), "ms", 0.02, each,
		peer/float64(n))}
}

// lastCommits compares the last commits of the entries of a directory.
func (w *writes) lastCommits(ctx context.Context) []world.Figure {
	entries := strings.Split(strings.TrimSuffix(world.Must(gitload.RunGit(ctx, w.Repository(name), nil, "ls-tree", "-z",
		"--name-only", w.tip.ID+":"+w.dir)), "\x00"), "\x00")
	call := func() {
		world.Check(w.client.Call(ctx, http.MethodGet, name, "last-commits/"+w.tip.ID+"/"+w.dir, nil, nil))
	}
	ours, begun := w.tree.During(call), world.ChildrenCPU()
	for _, entry := range entries {
		runGit(ctx, w.Repository(name), "--literal-pathspecs", "log", "-1", "--format=%H", w.tip.ID, "--",
			filepath.Join(w.dir, entry))
	}
	peer := world.ChildrenCPU() - begun
	var again loadgen.Samples
	for range 20 {
		again = append(again, world.TimeOf(call))
	}
	ms := again.Summarize().P50
	return []world.Figure{
		world.Ratio(fmt.Sprintf("CPU time of %d entries", len(entries)), "ms", 0.05, loadgen.Milliseconds(ours),
			loadgen.Milliseconds(peer)),
		world.NewFigure("again", "<= 5 ms", ms, ms <= 5, "%.2f ms", ms),
	}
}

// archive compares archives.
func (w *writes) archive(ctx context.Context) []world.Figure {
	path := "/" + name + "/-/archive/" + w.tip.ID + ".tar.gz"
	get := func(c *gitload.Client, path string) float64 {
		return loadgen.Milliseconds(world.TimeOf(func() {
			body, _, err := c.Get(ctx, path)
			world.Check(err)
			defer body.Close()
			world.Must(io.Copy(io.Discard, body))
		}))
	}
	file, begun := filepath.Join(w.Dir, "archive.tar.gz"), world.ChildrenCPU()
	peer := loadgen.Milliseconds(world.TimeOf(func() {
		runGit(ctx, w.Repository(name), "archive", "--format=tar.gz", "-o", file, w.tip.ID)
	}))
	peerCPU := world.ChildrenCPU() - begun
	var first float64
	cpu := w.tree.During(func() { first = get(w.client, path) })
	server := httptest.NewServer(http.FileServer(http.Dir(w.Dir)))
	defer server.Close()
	files := gitload.NewClient(server.URL, "")
	defer files.Close()
	p, o, again := world.Compare(w.rounds, func() float64 { return get(files, "/archive.tar.gz") },
		func() float64 { return get(w.client, path) })
	return []world.Figure{
		world.Ratio("time of the first archive", "ms", 1/0.9, first, peer),
		world.Ratio("CPU time of the first archive", "ms", 1/0.9, loadgen.Milliseconds(cpu), loadgen.Milliseconds(peerCPU)),
		world.NewFigure("throughput of the same archive again, against a file server", ">= 0.9", 1/again, 1/again >= 0.9,
			"%.2f (%.2f ms, file server %.2f ms)", 1/again, o, p),
	}
}

// writesPerSecond is the rate of commits of the part beside.
const writesPerSecond = 200

// beside compares ls-refs beside commits with ls-refs of an idle server.
func (w *writes) beside(ctx context.Context) []world.Figure {
	t := world.Must(loadgen.ParseTarget(w.server.URL+"/"+name+".git", false))
	request := t.Post("git-upload-pack", "", gitload.LsRefs(git.SHA1, "refs/heads/"))
	probe := func() float64 {
		l := loadgen.Repeat(t, request, nil, time.Minute)
		l.Conns, l.Arrivals, l.Connect, l.Duration, l.Urgent = loadgen.ProbeConns, loadgen.FixedRate(loadgen.ProbeRate), true,
			w.duration, true
		out := world.Must(l.Run(ctx))
		world.Check(out.Failures.Detail())
		return out.Latency().Summarize().P99
	}
	world.Check(w.client.Put(ctx, name, "called", w.tip.ID, "first", "first\n"))
	made, refused := 0, atomic.Int64{}
	idle, busy, r := world.Compare(w.rounds, probe, func() (p99 float64) {
		var load sync.WaitGroup
		var failures *loadgen.Failures
		n := 0
		load.Go(func() {
			n, failures = world.Every(ctx, writesPerSecond, w.duration, func(i int) error {
				err := w.client.Put(ctx, name, "called", "", fmt.Sprint("file", i%100), strconv.Itoa(i))
				if e, ok := errors.AsType[*loadgen.HTTPError](err); ok && e.Status == http.StatusTooManyRequests {
					refused.Add(1)
					return nil
				}
				return err
			})
		})
		p99 = probe()
		load.Wait()
		world.Check(failures.Detail())
		made += n
		return p99
	})
	return []world.Figure{world.NewFigure("99th percentile of ls-refs beside commits", "<= 2", r, r <= 2,
		"%.2f (%.2f ms, idle %.2f ms, %d commits, %d of them refused)", r, busy, idle, made, refused.Load())}
}
