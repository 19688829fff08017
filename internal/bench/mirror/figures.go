package mirror

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

// window is the time in which callers share one check of the origin with fresh = "always".
const window = time.Second

// storm lets all clients fetch one new commit at once.
func (w *pair) storm(ctx context.Context) []world.Figure {
	w.hydrate(ctx)
	before := world.Must(w.mirror.Metrics(ctx))
	world.Must(commit(ctx, w.repo(), "storm"))
	loadgen.Sleep(ctx, window+100*time.Millisecond)
	w.origin.reset()
	took := world.Together(ctx, w.clients, func(ctx context.Context) error {
		c := gitload.NewClient(w.mirror.URL, "")
		defer c.Close()
		return c.Clone(ctx, "app", 1)
	})
	made := world.Must(w.mirror.Metrics(ctx)).Since(before).Sum(loadgen.Requests, loadgen.Miss)
	refs, fetches := w.origin.count("ls-refs"), w.origin.count("fetch")
	return []world.Figure{
		world.NewFigure("requests to the origin", "1 ls-refs, 1 fetch", float64(refs+fetches), refs == 1 && fetches == 1,
			"%d ls-refs, %d fetch, %.2f s", refs, fetches, took.Seconds()),
		world.NewFigure("packs made", "1", made, made == 1, "%.0f", made),
	}
}

// firstByte compares ls-refs of a mirror that checks the origin with ls-refs of the origin.
func (w *pair) firstByte(ctx context.Context) []world.Figure {
	w.hydrate(ctx)
	direct, mirrored := gitload.NewClient(w.origin.url(), ""), gitload.NewClient(w.mirror.URL, "")
	defer direct.Close()
	defer mirrored.Close()
	var origin, mirror loadgen.Samples
	for range 21 {
		loadgen.Sleep(ctx, window+50*time.Millisecond)
		_, a, err := direct.LsRefs(ctx, "app", "main")
		world.Check(err)
		_, b, err := mirrored.LsRefs(ctx, "app", "main")
		world.Check(err)
		origin, mirror = append(origin, a), append(mirror, b)
	}
	a, b := origin[1:].Summarize().P50, mirror[1:].Summarize().P50 // the first ones connect
	return []world.Figure{world.NewFigure("time to first byte", "origin's ls-refs + 5 ms", b, b <= a+5,
		"%.1f ms, origin %.1f ms", b, a)}
}

// firstClone compares clones through an empty mirror with clones of the origin.
func (w *pair) firstClone(ctx context.Context) []world.Figure {
	world.Check(w.Add(ctx, "shallow", w.repo()))
	clone := func(url, repo string, args ...string) float64 {
		to := filepath.Join(w.Dir, "clone.git")
		defer os.RemoveAll(to)
		begun := time.Now()
		args = append([]string{"clone", "-q", "--bare", url + "/" + repo, to}, args...)
		world.Must(gitload.RunGit(ctx, w.Dir, nil, args...))
		return time.Since(begun).Seconds()
	}
	direct, mirrored := clone(w.origin.url(), "app"), clone(w.mirror.URL, "app")
	shallow, throughMirror := clone(w.origin.url(), "shallow", "--depth=1"), clone(w.mirror.URL, "shallow", "--depth=1")
	speed, slower := direct/mirrored, throughMirror/shallow
	return []world.Figure{
		world.NewFigure("first clone's throughput", ">= 0.9", speed, speed >= 0.9, "%.2f (%.2f s, direct %.2f s)", speed,
			mirrored, direct),
		world.NewFigure("first clone with depth 1, time", "<= 1.3", slower, slower <= 1.3, "%.2f (%.2f s, direct %.2f s)",
			slower, throughMirror, shallow),
	}
}

// outageFigures clones known commits while the origin refuses connections.
func (w *pair) outageFigures(ctx context.Context) []world.Figure {
	w.hydrate(ctx)
	w.origin.link.Down()
	c := gitload.NewClient(w.mirror.URL, "")
	defer c.Close()
	n, failures := world.Every(ctx, 20, w.outage, func(int) error { return c.Clone(ctx, "app", 1) })
	return []world.Figure{world.NewFigure("failed fetches of known commits", "0", float64(failures.N), failures.N == 0,
		"%d of %d in %v %s", failures.N, n, w.outage, strings.Join(failures.First, "; "))}
}

// stale reads a branch that moves, and counts reads that miss a change older than the window.
func (w *pair) stale(ctx context.Context) []world.Figure {
	w.hydrate(ctx)
	type version struct {
		id string
		at time.Time // when the change was complete
	}
	var mu sync.Mutex
	var versions []version
	var reading atomic.Bool
	reading.Store(true)
	var writer sync.WaitGroup
	var failed error
	writer.Go(func() {
		for i := 0; reading.Load() && ctx.Err() == nil && failed == nil; i++ {
			var id string
			id, failed = commit(ctx, w.repo(), fmt.Sprint(i))
			mu.Lock()
			versions = append(versions, version{id, time.Now()})
			mu.Unlock()
			loadgen.Sleep(ctx, 100*time.Millisecond)
		}
	})
	var left, stale atomic.Int64
	left.Store(int64(w.reads))
	read := func(c *gitload.Client) error {
		begun := time.Now()
		id, _, err := c.LsRefs(ctx, "app", "main")
		mu.Lock()
		defer mu.Unlock()
		due := 0 // versions that were complete a window before the read
		for due < len(versions) && versions[due].at.Add(window).Before(begun) {
			due++
		}
		if at := slices.IndexFunc(versions, func(v version) bool { return v.id == id }); err == nil && at < due-1 {
			stale.Add(1)
		}
		return err
	}
	defer func() { reading.Store(false); writer.Wait() }()
	world.Together(ctx, 8, func(ctx context.Context) error {
		c := gitload.NewClient(w.mirror.URL, "")
		defer c.Close()
		for left.Add(-1) >= 0 && ctx.Err() == nil {
			if err := read(c); err != nil {
				return err
			}
			loadgen.Sleep(ctx, 5*time.Millisecond)
		}
		return ctx.Err()
	})
	reading.Store(false)
	writer.Wait()
	world.Check(failed)
	return []world.Figure{world.NewFigure("stale reads", "0", float64(stale.Load()), stale.Load() == 0,
		"%d of %d, %d changes", stale.Load(), w.reads, len(versions))}
}

// webhook measures the time from a webhook to the new commit in the mirror's refs.
func (w *pair) webhook(ctx context.Context) []world.Figure {
	w.hydrate(ctx)
	c := gitload.NewClient(w.mirror.URL, "")
	defer c.Close()
	var took loadgen.Samples
	for i := range 20 {
		id := world.Must(commit(ctx, w.repo(), fmt.Sprint(i)))
		begun := time.Now()
		w.deliver(ctx, i)
		for got := ""; got != id; loadgen.Sleep(ctx, 2*time.Millisecond) {
			var err error
			if got, _, err = c.LsRefs(ctx, "app", "main"); err == nil && time.Since(begun) > time.Minute {
				err = fmt.Errorf("the mirror's main is %s a minute after the webhook, want %s", got, id)
			}
			world.Check(err)
		}
		took = append(took, time.Since(begun))
	}
	p := took.Summarize()
	return []world.Figure{world.NewFigure("webhook to visible", "<= 200 ms", p.P50, p.P50 <= 200,
		"p50 %.0f ms, max %.0f ms", p.P50, p.Max)}
}

// deliver sends a webhook of the origin's repository as GitHub does.
func (w *pair) deliver(ctx context.Context, n int) {
	body := fmt.Sprintf(`{"ref":"refs/heads/main","repository":{"full_name":"app","clone_url":%q,"html_url":%q}}`,
		w.origin.url()+"/app.git", w.origin.url()+"/app")
	sum := hmac.New(sha256.New, []byte(webhookSecret))
	sum.Write([]byte(body))
	url := strings.TrimSuffix(w.mirror.URL, "/origin") + "/-/hooks/github"
	request := world.Must(http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body)))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-GitHub-Event", "push")
	request.Header.Set("X-GitHub-Delivery", fmt.Sprintf("%d-%d", time.Now().UnixNano(), n))
	request.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(sum.Sum(nil)))
	response := world.Must(http.DefaultClient.Do(request))
	response.Body.Close()
	if response.StatusCode != http.StatusAccepted {
		world.Check(fmt.Errorf("the webhook got %s, want 202", response.Status))
	}
}

// unchanged lists refs of many repositories that do not change.
func (w *pair) unchanged(ctx context.Context) []world.Figure {
	world.Check(w.AddHistory(ctx, "r0", 3, 100))
	names := []string{"r0"}
	for i := 1; i < w.mirrors; i++ {
		names = append(names, fmt.Sprintf("r%d", i))
		world.Check(os.Symlink("r0.git", w.Repository(names[i])))
	}
	w.origin.link.Shape(0, 0)
	w.origin.mu.Lock()
	w.origin.replay = true
	w.origin.mu.Unlock()
	c := gitload.NewClient(w.mirror.URL, "")
	defer c.Close()
	for _, name := range names {
		world.Check(c.Clone(ctx, name, 0))
	}
	loadgen.Sleep(ctx, 2*time.Second) // the first updates end
	w.origin.reset()
	before, begun := world.Must(loadgen.ProcessCPU(w.mirror.Pid)), time.Now()
	n, failures := world.Every(ctx, 200, w.window, func(i int) error {
		name := names[i%len(names)]
		err := c.Info(ctx, name)
		if err == nil {
			_, _, err = c.LsRefs(ctx, name, "main")
		}
		return err
	})
	elapsed := time.Since(begun).Seconds()
	cpu := (world.Must(loadgen.ProcessCPU(w.mirror.Pid)) - before).Seconds() / elapsed
	world.Check(failures.Detail())
	asked := w.origin.count("ls-refs")
	return []world.Figure{
		world.NewFigure("requests to the origin", "<= 1 per repository and window", float64(asked), asked <= n,
			"%d for %d ls-remote, %d mirrors", asked, n, len(names)),
		world.NewFigure("CPU of the mirror", "<= 0.2", cpu, cpu <= 0.2, "%.3f at %.0f ls-remote/s", cpu, float64(n)/elapsed),
	}
}
