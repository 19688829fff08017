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
func (w *pair) storm(ctx context.Context) ([]world.Figure, error) {
	if err := w.hydrate(ctx); err != nil {
		return nil, err
	}
	before, err := w.misses(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := commit(ctx, w.repo(), "storm"); err != nil {
		return nil, err
	}
	loadgen.Sleep(ctx, window+100*time.Millisecond)
	w.origin.reset()
	took, err := world.Together(ctx, w.clients, func(ctx context.Context) error {
		c := gitload.NewClient(w.mirror.URL, "")
		defer c.Close()
		return c.Clone(ctx, "app", 1)
	})
	if err != nil {
		return nil, err
	}
	after, err := w.misses(ctx)
	if err != nil {
		return nil, err
	}
	refs, fetches := w.origin.count("ls-refs"), w.origin.count("fetch")
	return []world.Figure{
		{What: "requests to the origin", Goal: "1 ls-refs, 1 fetch", Value: float64(refs + fetches),
			Got: fmt.Sprintf("%d ls-refs, %d fetch, %.2f s", refs, fetches, took.Seconds()), Reached: refs == 1 && fetches == 1},
		{What: "packs made", Goal: "1", Value: float64(after - before), Got: fmt.Sprint(after - before),
			Reached: after-before == 1},
	}, nil
}

// misses returns the number of packs that were not in the mirror's cache.
func (w *pair) misses(ctx context.Context) (int, error) {
	metrics, err := w.mirror.Metrics(ctx)
	if err != nil {
		return 0, err
	}
	return int(metrics.Sum(loadgen.Requests, loadgen.Miss)), nil
}

// firstByte compares ls-refs of a mirror that checks the origin with ls-refs of the origin.
func (w *pair) firstByte(ctx context.Context) ([]world.Figure, error) {
	if err := w.hydrate(ctx); err != nil {
		return nil, err
	}
	direct, mirrored := gitload.NewClient(w.origin.url(), ""), gitload.NewClient(w.mirror.URL, "")
	defer direct.Close()
	defer mirrored.Close()
	var origin, mirror loadgen.Samples
	for range 21 {
		if !loadgen.Sleep(ctx, window+50*time.Millisecond) {
			return nil, ctx.Err()
		}
		_, a, err := direct.LsRefs(ctx, "app", "main")
		if err != nil {
			return nil, err
		}
		_, b, err := mirrored.LsRefs(ctx, "app", "main")
		if err != nil {
			return nil, err
		}
		origin, mirror = append(origin, a), append(mirror, b)
	}
	a, b := origin[1:].Summarize().P50, mirror[1:].Summarize().P50 // the first ones connect
	return []world.Figure{{What: "time to first byte", Goal: "origin's ls-refs + 5 ms", Value: b,
		Got: fmt.Sprintf("%.1f ms, origin %.1f ms", b, a), Reached: b <= a+5}}, nil
}

// firstClone compares clones through an empty mirror with clones of the origin.
func (w *pair) firstClone(ctx context.Context) ([]world.Figure, error) {
	if err := w.Add(ctx, "shallow", w.repo()); err != nil {
		return nil, err
	}
	clone := func(url, repo string, args ...string) (time.Duration, error) {
		to := filepath.Join(w.Dir, "clone.git")
		defer os.RemoveAll(to)
		begun := time.Now()
		_, err := gitload.RunGit(ctx, w.Dir, nil, append([]string{"clone", "-q", "--bare", url + "/" + repo, to}, args...)...)
		return time.Since(begun), err
	}
	var figures []world.Figure
	for _, c := range []struct {
		repo, what, goal string
		most             float64
		args             []string
	}{
		{"app", "first clone's throughput", ">= 0.9", 1 / 0.9, nil},
		{"shallow", "first clone with depth 1, time", "<= 1.3", 1.3, []string{"--depth=1"}},
	} {
		direct, err := clone(w.origin.url(), c.repo, c.args...)
		if err != nil {
			return nil, err
		}
		mirrored, err := clone(w.mirror.URL, c.repo, c.args...)
		if err != nil {
			return nil, err
		}
		ratio := mirrored.Seconds() / direct.Seconds()
		shown := ratio
		if c.args == nil {
			shown = 1 / ratio
		}
		figures = append(figures, world.Figure{What: c.what, Goal: c.goal, Value: shown,
			Got:     fmt.Sprintf("%.2f (%.2f s, direct %.2f s)", shown, mirrored.Seconds(), direct.Seconds()),
			Reached: ratio <= c.most})
	}
	return figures, nil
}

// outage clones known commits while the origin refuses connections.
func (w *pair) outageFigures(ctx context.Context) ([]world.Figure, error) {
	if err := w.hydrate(ctx); err != nil {
		return nil, err
	}
	w.origin.link.Down()
	failures := &loadgen.Failures{}
	var clones sync.WaitGroup
	c := gitload.NewClient(w.mirror.URL, "")
	defer c.Close()
	n := 0
	begun := time.Now()
	for tick := time.NewTicker(time.Second / 20); time.Since(begun) < w.outage && ctx.Err() == nil; <-tick.C {
		n++
		clones.Go(func() {
			if err := c.Clone(ctx, "app", 1); err != nil {
				failures.Add(err)
			}
		})
	}
	clones.Wait()
	got := fmt.Sprintf("%d of %d in %v %s", failures.Count(), n, w.outage, strings.Join(failures.First, "; "))
	return []world.Figure{{What: "failed fetches of known commits", Goal: "0", Value: float64(failures.Count()), Got: got,
		Reached: failures.Count() == 0}}, nil
}

// stale reads a branch that moves, and counts reads that miss a change older than the window.
func (w *pair) stale(ctx context.Context) ([]world.Figure, error) {
	if err := w.hydrate(ctx); err != nil {
		return nil, err
	}
	type version struct {
		id string
		at time.Time // when the change was complete
	}
	var mu sync.Mutex
	var versions []version
	var reading atomic.Bool
	reading.Store(true)
	var writer, readers sync.WaitGroup
	failures := &loadgen.Failures{}
	writer.Go(func() {
		for i := 0; reading.Load() && ctx.Err() == nil; i++ {
			id, err := commit(ctx, w.repo(), fmt.Sprint(i))
			if err != nil {
				failures.Add(err)
				return
			}
			mu.Lock()
			versions = append(versions, version{id, time.Now()})
			mu.Unlock()
			loadgen.Sleep(ctx, 100*time.Millisecond)
		}
	})
	var left, stale atomic.Int64
	left.Store(int64(w.reads))
	for range 8 {
		readers.Go(func() {
			c := gitload.NewClient(w.mirror.URL, "")
			defer c.Close()
			for left.Add(-1) >= 0 && ctx.Err() == nil {
				begun := time.Now()
				id, _, err := c.LsRefs(ctx, "app", "main")
				if err != nil {
					failures.Add(err)
					continue
				}
				mu.Lock()
				due := 0 // versions that were complete a window before the read
				for due < len(versions) && versions[due].at.Add(window).Before(begun) {
					due++
				}
				at := slices.IndexFunc(versions, func(v version) bool { return v.id == id })
				mu.Unlock()
				if at < due-1 {
					stale.Add(1)
				}
				loadgen.Sleep(ctx, 5*time.Millisecond)
			}
		})
	}
	readers.Wait()
	reading.Store(false)
	writer.Wait()
	if failures.Count() > 0 {
		return nil, fmt.Errorf("%d requests failed: %v", failures.Count(), failures.First)
	}
	return []world.Figure{{What: "stale reads", Goal: "0", Value: float64(stale.Load()),
		Got: fmt.Sprintf("%d of %d, %d changes", stale.Load(), w.reads, len(versions)), Reached: stale.Load() == 0}}, nil
}

// webhook measures the time from a webhook to the new commit in the mirror's refs.
func (w *pair) webhook(ctx context.Context) ([]world.Figure, error) {
	if err := w.hydrate(ctx); err != nil {
		return nil, err
	}
	c := gitload.NewClient(w.mirror.URL, "")
	defer c.Close()
	var took loadgen.Samples
	for i := range 20 {
		id, err := commit(ctx, w.repo(), fmt.Sprint(i))
		if err != nil {
			return nil, err
		}
		begun := time.Now()
		if err := w.deliver(ctx, i); err != nil {
			return nil, err
		}
		for {
			got, _, err := c.LsRefs(ctx, "app", "main")
			if err != nil {
				return nil, err
			}
			if got == id {
				break
			}
			if time.Since(begun) > time.Minute {
				return nil, fmt.Errorf("the mirror's main is %s a minute after the webhook, want %s", got, id)
			}
			loadgen.Sleep(ctx, 2*time.Millisecond)
		}
		took = append(took, time.Since(begun))
	}
	p := took.Summarize()
	return []world.Figure{{What: "webhook to visible", Goal: "<= 200 ms", Value: p.P50,
		Got: fmt.Sprintf("p50 %.0f ms, max %.0f ms", p.P50, p.Max), Reached: p.P50 <= 200}}, nil
}

// deliver sends a webhook of the origin's repository as GitHub does.
func (w *pair) deliver(ctx context.Context, n int) error {
	body := fmt.Sprintf(`{"ref":"refs/heads/main","repository":{"full_name":"app","clone_url":%q,"html_url":%q}}`,
		w.origin.url()+"/app.git", w.origin.url()+"/app")
	sum := hmac.New(sha256.New, []byte(webhookSecret))
	sum.Write([]byte(body))
	url := strings.TrimSuffix(w.mirror.URL, "/origin") + "/-/hooks/github"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-GitHub-Event", "push")
	request.Header.Set("X-GitHub-Delivery", fmt.Sprintf("%d-%d", time.Now().UnixNano(), n))
	request.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(sum.Sum(nil)))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	response.Body.Close()
	if response.StatusCode != http.StatusAccepted {
		return fmt.Errorf("the webhook got %s, want 202", response.Status)
	}
	return nil
}

// unchanged lists refs of many repositories that do not change.
func (w *pair) unchanged(ctx context.Context) ([]world.Figure, error) {
	if err := w.AddHistory(ctx, "r0", 3, 100); err != nil {
		return nil, err
	}
	names := []string{"r0"}
	for i := 1; i < w.mirrors; i++ {
		names = append(names, fmt.Sprintf("r%d", i))
		if err := os.Symlink("r0.git", w.Repository(names[i])); err != nil {
			return nil, err
		}
	}
	w.origin.link.Shape(0, 0)
	w.origin.mu.Lock()
	w.origin.replay = true
	w.origin.mu.Unlock()
	c := gitload.NewClient(w.mirror.URL, "")
	defer c.Close()
	for _, name := range names {
		if err := c.Clone(ctx, name, 0); err != nil {
			return nil, err
		}
	}
	loadgen.Sleep(ctx, 2*time.Second) // the first updates end
	w.origin.reset()
	before, err := loadgen.ProcessCPU(w.mirror.Pid)
	if err != nil {
		return nil, err
	}
	failures := &loadgen.Failures{}
	var requests sync.WaitGroup
	n, begun := 0, time.Now()
	tick := time.NewTicker(time.Second / 200)
	defer tick.Stop()
	for ; time.Since(begun) < w.window && ctx.Err() == nil; <-tick.C {
		name := names[n%len(names)]
		n++
		requests.Go(func() {
			err := c.Info(ctx, name)
			if err == nil {
				_, _, err = c.LsRefs(ctx, name, "main")
			}
			if err != nil {
				failures.Add(err)
			}
		})
	}
	requests.Wait()
	elapsed := time.Since(begun)
	after, err := loadgen.ProcessCPU(w.mirror.Pid)
	if err != nil {
		return nil, err
	}
	if failures.Count() > 0 {
		return nil, fmt.Errorf("%d requests failed: %v", failures.Count(), failures.First)
	}
	asked := w.origin.count("ls-refs")
	cpu := (after - before).Seconds() / elapsed.Seconds()
	return []world.Figure{
		{What: "requests to the origin", Goal: "<= 1 per repository and window", Value: float64(asked),
			Got: fmt.Sprintf("%d for %d ls-remote, %d mirrors", asked, n, len(names)), Reached: asked <= n},
		{What: "CPU of the mirror", Goal: "<= 0.2", Value: cpu,
			Got: fmt.Sprintf("%.3f at %.0f ls-remote/s", cpu, float64(n)/elapsed.Seconds()), Reached: cpu <= 0.2},
	}, nil
}
