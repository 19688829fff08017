package cold

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// server is a measured Packhorse.
type server struct {
	*world.Process
	root    string
	timeout time.Duration
	admin   *client.Client
	push    []string // environment of git push
}

// start starts a server of the repositories of a world.
func (o *options) start(ctx context.Context, w *world.World, name string, warmup bool) (*server, error) {
	settings := world.Public + world.NoSearch + "[maintenance]\nenabled = false\n"
	if !warmup {
		settings += "[warmup]\nenabled = false\n"
	}
	if !o.verify {
		settings += "[fetch]\nverify_packs = false\n"
	}
	if o.source != "" {
		settings += fmt.Sprintf("[packs]\nsource = %q\n", o.source)
	}
	own, err := w.Start(ctx, "serve", name, settings, "--root", w.Root())
	if err != nil {
		return nil, err
	}
	s := &server{Process: own, root: w.Root(), timeout: o.timeout}
	if s.push, err = own.PushAccess(ctx); err == nil {
		s.admin, err = client.New("unix:"+filepath.Join(own.State, "admin.sock"), client.Options{})
	}
	if err == nil {
		w.Defer(s.admin.Close)
	}
	return s, err
}

// target is the address of a repository below the root.
func (s *server) target(name string) (*loadgen.Target, error) {
	return loadgen.ParseTarget(s.URL+"/"+name, false)
}

// drop empties the pack cache.
func (s *server) drop(ctx context.Context) error {
	_, err := s.admin.Repositories().DropPacks(ctx, connect.NewRequest(&packhorsev1.DropPacksRequest{All: true}))
	if err != nil {
		return fmt.Errorf("empty the pack cache: %w", err)
	}
	return nil
}

// listRefs sends the request that a client sends before its fetch. The server then knows the repository.
func (s *server) listRefs(ctx context.Context, t *loadgen.Target, r *refs) error {
	_, err := t.AskAll(ctx, t.Post("git-upload-pack", "", gitload.LsRefs(r.format, "HEAD")), s.timeout)
	return err
}

const (
	// quietStep is the interval of samples in settle. In a quiet step the server uses at most quietCPU.
	quietStep, quietCPU = 20 * time.Millisecond, 500 * time.Microsecond
	// quietPatience is the maximum wait for a quiet server.
	quietPatience = 5 * time.Second
)

// settle waits until the server is quiet, and returns its CPU time until the last step in which it was not. Its
// children are not included.
func (s *server) settle(ctx context.Context) (time.Duration, error) {
	busy, err := loadgen.ProcessCPU(s.Pid)
	if err != nil {
		return 0, err
	}
	last, quiet := busy, 0
	for end := time.Now().Add(quietPatience); quiet < 2 && time.Now().Before(end); {
		if !loadgen.Sleep(ctx, quietStep) {
			return 0, ctx.Err()
		}
		now, err := loadgen.ProcessCPU(s.Pid)
		if err != nil {
			return 0, err
		}
		if now-last <= quietCPU {
			quiet++
		} else {
			busy, quiet = now, 0
		}
		last = now
	}
	return busy, nil
}

// sample is one measurement of the server or of git.
type sample struct {
	cpu       time.Duration
	answer    gitload.Answer
	processes int
	rss       int64  // growth of anonymous memory
	missed    bool   // the pack was not in the cache
	by        string // source of the pack; empty: unknown
}

// measure sends a request and measures the server until it is quiet again.
func (s *server) measure(ctx context.Context, t *loadgen.Target, request []byte) (*sample, error) {
	before, err := s.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := s.settle(ctx); err != nil {
		return nil, err
	}
	tree, err := loadgen.NewProcTree(s.Pid)
	if err != nil {
		return nil, err
	}
	anon := tree.Anon()
	watch, err := loadgen.WatchTree(s.Pid)
	if err != nil {
		return nil, err
	}
	defer watch.Stop()
	began, err := loadgen.ProcessCPU(s.Pid)
	if err != nil {
		return nil, err
	}
	answer, err := gitload.FetchOnce(ctx, t, request, s.timeout)
	if err != nil {
		return nil, err
	}
	ended, err := s.settle(ctx)
	if err != nil {
		return nil, err
	}
	usage := watch.Stop()
	after, err := s.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	d := after.Since(before)
	children := time.Duration(d.Sum(loadgen.GitCPU) * float64(time.Second))
	return &sample{cpu: ended - began + children, answer: *answer, processes: int(d.Sum(loadgen.Commands)),
		rss: usage.Anon - anon, missed: d.Sum(loadgen.Requests, loadgen.Miss) > 0, by: madeBy(d)}, nil
}

// madeBy describes what made a pack, by the increase of the metrics.
func madeBy(d loadgen.Metrics) string {
	var reasons []string
	for key, n := range d {
		if labels, ok := strings.CutPrefix(key, "packhorse_pack_fallbacks_total{"); ok && n > 0 {
			_, reason, _ := strings.Cut(labels, `reason="`)
			reason, _, _ = strings.Cut(reason, `"`)
			reasons = append(reasons, reason)
		}
	}
	slices.Sort(reasons)
	switch {
	case d.Native() > 0:
		const bytes = "packhorse_pack_bytes_total"
		disk, cache := d.Sum(bytes, `"reused_disk"`), d.Sum(bytes, `"reused_cache"`)
		percent := 100 / max(d.Sum(bytes), 1)
		return fmt.Sprintf("native %.1f + %.1f ms, %.0f/%.0f/%.0f %%", d.Sum(loadgen.Select)*1e3, d.Sum(loadgen.Write)*1e3,
			disk*percent, cache*percent, (d.Sum(bytes)-disk-cache)*percent)
	case len(reasons) > 0:
		return "git: " + strings.Join(reasons, ", ")
	case d.Sum(loadgen.Commands, loadgen.PackGit) > 0:
		return "git"
	}
	return ""
}

// measureGit answers a request with git upload-pack.
func measureGit(ctx context.Context, repo string, request []byte) (*sample, error) {
	var watch *loadgen.TreeWatch
	answer, cpu, err := gitload.UploadPack(ctx, repo, request, func(pid int) {
		watch, _ = loadgen.WatchTree(pid) // nil if it has already ended
	})
	s := &sample{cpu: cpu}
	if watch != nil {
		s.rss = watch.Stop().Anon
	}
	if err != nil {
		return nil, err
	}
	s.answer = *answer
	return s, nil
}
