package roles_test

import (
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/packcache"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
)

// warmWorld is a node with a cache that warms up, and a gateway.
type warmWorld struct {
	t    *testing.T
	node *storage.Node
	repo *gittest.Repo
	reg  *prometheus.Registry
	url  string
}

func newWarmWorld(t *testing.T, o uploadpack.Warmup) *warmWorld {
	t.Helper()
	w := &warmWorld{t: t, reg: prometheus.NewRegistry()}
	runner, err := process.New(process.Options{Classes: map[process.Class]process.Limits{packsource.ClassPack: {Slots: 2,
		Queue: 100}}})
	if err != nil {
		t.Fatal(err)
	}
	source, err := packsource.NewGit(runner, packsource.GitOptions{Scratch: filepath.Join(t.TempDir(), "scratch")})
	if err != nil {
		t.Fatal(err)
	}
	cache, err := packcache.Open(source, packcache.Options{Dir: t.TempDir(), MaxBytes: 1 << 30, MinFree: -1, Probation: -1,
		Registerer: w.reg})
	if err != nil {
		t.Fatal(err)
	}
	o.Registerer = w.reg
	root := t.TempDir()
	w.repo = gittest.InitAt(t, filepath.Join(root, "app.git"))
	w.repo.Git("config", "uploadpack.allowFilter", "true")
	w.repo.Git("update-ref", "refs/heads/main", w.repo.Commit("first").String())
	if w.node, err = storage.New(uploadpack.New(cache, uploadpack.Options{Agent: "test", Warmup: &o}),
		storage.Options{Root: root}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.node.StopBackground()
		cache.Close()
		_ = runner.Close(t.Context())
		w.node.Close()
	})
	w.url, _ = serveReplicas(t, io.Discard, &router.Replica{Name: "a", Node: w.node})
	return w
}

// metric sums a metric, of those with a label's value if there is one.
func (w *warmWorld) metric(name string, value ...string) (sum float64) {
	w.t.Helper()
	families, err := w.reg.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if len(value) == 0 || m.GetLabel()[0].GetValue() == value[0] {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// push moves main, and makes a tag or a branch at times.
func (w *warmWorld) push(i int) {
	w.t.Helper()
	w.repo.Git("update-ref", "refs/heads/main", w.repo.Commit(fmt.Sprint("commit ", i), w.repo.ID("main")).String())
	if i == 1 {
		w.repo.Git("tag", "-a", "-m", "t", fmt.Sprint("v", i), "main")
	}
	w.changed()
}

func (w *warmWorld) changed() {
	w.t.Helper()
	path, err := git.ParseRepoPath("app")
	if err != nil {
		w.t.Fatal(err)
	}
	w.node.RefsChanged(path)
}

// TestWarmUpMatchesClients lets real clients of many shapes come after each push. From the second push on every
// one of them has to find its pack: the cache makes none for a request.
func TestWarmUpMatchesClients(t *testing.T) {
	t.Parallel()
	w := newWarmWorld(t, uploadpack.Warmup{Packs: 100})
	w.repo.Git("update-ref", "refs/heads/side", w.repo.Commit("side", w.repo.ID("main")).String())
	w.repo.Git("update-ref", "refs/changes/1", w.repo.Commit("change", w.repo.ID("main")).String())
	for i := range 3 {
		w.push(i)
	}
	url := w.url + "/app"
	clone := func(args ...string) func(dir string) {
		return func(string) {
			gittest.Run(t, "", "", append(append([]string{"clone", "-q", "--bare"}, args...), url,
				filepath.Join(t.TempDir(), "clone"))...)
		}
	}
	runner := func(args ...string) func(dir string) { // into a repository that stays
		return func(dir string) {
			gittest.Run(t, dir, "", slices.Concat([]string{"fetch", "-q"}, args,
				[]string{url, "+refs/heads/main:refs/remotes/origin/main"})...)
		}
	}
	clients := map[string]func(dir string){
		"clone": clone(), "mirror": clone("--mirror"), "no tags": clone("--no-tags"),
		"v0":     clone("-c", "protocol.version=0", "--depth=3"),
		"single": clone("--single-branch"), "depth 1": clone("--depth=1"),
		"depth 2":  clone("--depth=2", "--no-single-branch"),
		"blobless": clone("--filter=blob:none"), "treeless": clone("--filter=tree:0", "--single-branch", "--no-tags"),
		"since":    clone("--shallow-since=2001-01-01", "--single-branch"),
		"runner 1": runner(), "runner 2": runner(), "runner without tags 1": runner("--no-tags"),
		"runner without tags 2": runner("--no-tags"),
		"shallow runner 1":      runner("--depth=1", "--no-tags"), "shallow runner 2": runner("--depth=1", "--no-tags"),
	}
	dirs := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(clients)) {
		dirs[name] = filepath.Join(t.TempDir(), "runner")
		gittest.Run(t, "", "", "init", "-q", dirs[name])
	}
	everybody := func() {
		for _, name := range slices.Sorted(maps.Keys(clients)) {
			before := w.metric("packhorse_cache_requests_total", "miss")
			clients[name](dirs[name])
			if missed := w.metric("packhorse_cache_requests_total", "miss") - before; missed > 0 {
				t.Logf("%s missed", name)
			}
		}
	}
	settle := func() { // until nothing more is made
		t.Helper()
		last, since := -1.0, time.Now()
		for time.Since(since) < time.Second {
			if now := w.metric("packhorse_warmup_packs_total"); now != last {
				last, since = now, time.Now()
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	for i := range 3 { // what they are like becomes known
		everybody()
		if i < 2 {
			everybody() // without a push in between: the runners learn nothing
		}
		w.push(10 + i)
		settle()
	}
	everybody()
	w.push(20)
	settle()
	before := w.metric("packhorse_cache_requests_total", "miss")
	t.Log("now it counts")
	everybody()
	if missed := w.metric("packhorse_cache_requests_total", "miss") - before; missed > 0 {
		t.Errorf("misses after a warm-up = %v, want 0", missed)
	}
	if used := w.metric("packhorse_warmup_packs_total", "used"); used < float64(len(clients)) {
		t.Errorf("%v packs used; %v made", used, w.metric("packhorse_warmup_packs_total", "made"))
	}
}

// TestWarmUpHasBounds counts packs that are not made, by reason.
func TestWarmUpHasBounds(t *testing.T) {
	t.Parallel()
	never := func() bool { return false }
	for reason, o := range map[string]uploadpack.Warmup{
		"limit": {Packs: 1}, "busy": {Idle: never, MaxWait: time.Millisecond}, "there": {},
	} {
		w := newWarmWorld(t, o)
		for _, args := range [][]string{{"--single-branch"}, {"--depth=1"}, {"--single-branch"}, {"--depth=1"},
			{"--filter=blob:none"}} {
			w.repo.Git("repack", "-adq")
			gittest.Run(t, "", "", append(append([]string{"clone", "-q", "--bare"}, args...), w.url+"/app",
				filepath.Join(t.TempDir(), "clone"))...)
		}
		w.push(0)
		skipped := func() bool { return w.metric("packhorse_warmup_packs_total", reason) > 0 }
		if reason == "there" { // the clients already have the state after this change
			until(t, "made", func() bool { return w.metric("packhorse_warmup_packs_total", "made") == 2 })
			w.repo.Git("update-ref", "refs/heads/main", "main~1")
			w.changed()
		}
		until(t, reason, skipped)
		want := map[string]float64{"limit": 1, "there": 2}[reason]
		if made := w.metric("packhorse_warmup_packs_total", "made"); made != want {
			t.Errorf("%s: %v packs made, want %v", reason, made, want)
		}
	}
}

// until waits for a condition.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	gittest.WaitFor(t, what, is)
}
