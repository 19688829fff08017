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
)

// figure is a value that a mirror has to reach.
type figure struct {
	Part    string `json:"part"`
	What    string `json:"what"`
	Goal    string `json:"goal"`
	Got     string `json:"got"`
	Reached bool   `json:"reached"`
}

// figures are the measured parts, in the order of the report.
var figures = []struct {
	name, fresh string
	measure     func(*world, context.Context) ([]figure, error)
}{
	{"storm", "always", (*world).storm},
	{"first-byte", "always", (*world).firstByte},
	{"first-clone", "always", (*world).firstClone},
	{"outage", "always", (*world).outage},
	{"stale", "always", (*world).stale},
	{"webhook", "webhook", (*world).webhook},
	{"unchanged", "always", (*world).unchanged},
}

// window is the time in which callers share one check of the origin with fresh = "always".
const window = time.Second

// storm lets all clients fetch one new commit at once.
func (w *world) storm(ctx context.Context) ([]figure, error) {
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
	failures := &loadgen.Failures{}
	var clients sync.WaitGroup
	begun := time.Now()
	for range w.options.clients {
		clients.Go(func() {
			c := gitload.NewClient(w.mirror.url, "")
			defer c.Close()
			if err := c.Clone(ctx, "app", 1); err != nil {
				failures.Add(err)
			}
		})
	}
	clients.Wait()
	took := time.Since(begun)
	after, err := w.misses(ctx)
	if err != nil || failures.Err() != nil {
		return nil, fmt.Errorf("%w: %v", err, failures.First)
	}
	refs, fetches := w.origin.count("ls-refs"), w.origin.count("fetch")
	return []figure{
		{"storm", "requests to the origin", "1 ls-refs, 1 fetch", fmt.Sprintf("%d ls-refs, %d fetch, %.2f s", refs, fetches,
			took.Seconds()), refs == 1 && fetches == 1},
		{"storm", "packs made", "1", fmt.Sprint(after - before), after-before == 1},
	}, nil
}

// misses returns the number of packs that were not in the mirror's cache.
func (w *world) misses(ctx context.Context) (int, error) {
	counters, err := (&loadgen.Scraper{URL: w.mirror.ops + "/metrics", Wanted: true}).Read(ctx)
	if err != nil {
		return 0, err
	}
	return int(counters.Miss), nil
}

// firstByte compares ls-refs of a mirror that checks the origin with ls-refs of the origin.
func (w *world) firstByte(ctx context.Context) ([]figure, error) {
	if err := w.hydrate(ctx); err != nil {
		return nil, err
	}
	direct, mirrored := gitload.NewClient(w.origin.url(), ""), gitload.NewClient(w.mirror.url, "")
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
	return []figure{{"first-byte", "time to first byte", "origin's ls-refs + 5 ms",
		fmt.Sprintf("%.1f ms, origin %.1f ms", b, a),
		b <= a+5}}, nil
}

// firstClone compares clones through an empty mirror with clones of the origin.
func (w *world) firstClone(ctx context.Context) ([]figure, error) {
	if err := w.origin.add(ctx, "shallow", w.repo()); err != nil {
		return nil, err
	}
	clone := func(url, repo string, args ...string) (time.Duration, error) {
		to := filepath.Join(w.dir, "clone.git")
		defer os.RemoveAll(to)
		begun := time.Now()
		_, err := gitload.RunGit(ctx, w.dir, nil, append([]string{"clone", "-q", "--bare", url + "/" + repo, to}, args...)...)
		return time.Since(begun), err
	}
	var figures []figure
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
		mirrored, err := clone(w.mirror.url, c.repo, c.args...)
		if err != nil {
			return nil, err
		}
		ratio := mirrored.Seconds() / direct.Seconds()
		shown := ratio
		if c.args == nil {
			shown = 1 / ratio
		}
		figures = append(figures, figure{"first-clone", c.what, c.goal, fmt.Sprintf("%.2f (%.2f s, direct %.2f s)", shown,
			mirrored.Seconds(), direct.Seconds()), ratio <= c.most})
	}
	return figures, nil
}

// outage clones known commits while the origin refuses connections.
func (w *world) outage(ctx context.Context) ([]figure, error) {
	if err := w.hydrate(ctx); err != nil {
		return nil, err
	}
	w.origin.link.Down()
	failures := &loadgen.Failures{}
	var clones sync.WaitGroup
	c := gitload.NewClient(w.mirror.url, "")
	defer c.Close()
	n := 0
	begun := time.Now()
	for tick := time.NewTicker(time.Second / 20); time.Since(begun) < w.options.outage && ctx.Err() == nil; <-tick.C {
		n++
		clones.Go(func() {
			if err := c.Clone(ctx, "app", 1); err != nil {
				failures.Add(err)
			}
		})
	}
	clones.Wait()
	got := fmt.Sprintf("%d of %d in %v %s", failures.Count(), n, w.options.outage, strings.Join(failures.First, "; "))
	return []figure{{"outage", "failed fetches of known commits", "0", got, failures.Count() == 0}}, nil
}

// stale reads a branch that moves, and counts reads that miss a change older than the window.
func (w *world) stale(ctx context.Context) ([]figure, error) {
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
	left.Store(int64(w.options.reads))
	for range 8 {
		readers.Go(func() {
			c := gitload.NewClient(w.mirror.url, "")
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
	return []figure{{"stale", "stale reads", "0", fmt.Sprintf("%d of %d, %d changes", stale.Load(), w.options.reads,
		len(versions)), stale.Load() == 0}}, nil
}

// webhook measures the time from a webhook to the new commit in the mirror's refs.
func (w *world) webhook(ctx context.Context) ([]figure, error) {
	if err := w.hydrate(ctx); err != nil {
		return nil, err
	}
	c := gitload.NewClient(w.mirror.url, "")
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
	return []figure{{"webhook", "webhook to visible", "<= 200 ms", fmt.Sprintf("p50 %.0f ms, max %.0f ms", p.P50, p.Max),
		p.P50 <= 200}}, nil
}

// deliver sends a webhook of the origin's repository as GitHub does.
func (w *world) deliver(ctx context.Context, n int) error {
	body := fmt.Sprintf(`{"ref":"refs/heads/main","repository":{"full_name":"app","clone_url":%q,"html_url":%q}}`,
		w.origin.url()+"/app.git", w.origin.url()+"/app")
	sum := hmac.New(sha256.New, []byte(w.mirror.secret))
	sum.Write([]byte(body))
	url := strings.TrimSuffix(w.mirror.url, "/origin") + "/-/hooks/github"
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
func (w *world) unchanged(ctx context.Context) ([]figure, error) {
	small := filepath.Join(w.dir, "small.git")
	if err := gitload.Synthesize(ctx, small, 3, 100); err != nil {
		return nil, err
	}
	if err := w.origin.add(ctx, "r0", small); err != nil {
		return nil, err
	}
	names := []string{"r0"}
	for i := 1; i < w.options.mirrors; i++ {
		names = append(names, fmt.Sprintf("r%d", i))
		if err := os.Symlink("r0.git", filepath.Join(w.origin.root, names[i]+".git")); err != nil {
			return nil, err
		}
	}
	w.origin.link.Shape(0, 0)
	w.origin.mu.Lock()
	w.origin.replay = true
	w.origin.mu.Unlock()
	c := gitload.NewClient(w.mirror.url, "")
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
	for ; time.Since(begun) < w.options.window && ctx.Err() == nil; <-tick.C {
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
	return []figure{
		{"unchanged", "requests to the origin", "<= 1 per repository and window",
			fmt.Sprintf("%d for %d ls-remote, %d mirrors",
				asked, n, len(names)), asked <= n},
		{"unchanged", "CPU of the mirror", "<= 0.2", fmt.Sprintf("%.3f at %.0f ls-remote/s", cpu,
			float64(n)/elapsed.Seconds()),
			cpu <= 0.2},
	}, nil
}
