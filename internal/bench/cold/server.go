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

// timeout is the maximum time of a request without a byte.
const timeout = 30 * time.Minute

// server is a measured Packhorse.
type server struct {
	*world.Process
	root  string
	admin *client.Client
	push  []string // environment of git push
}

// start starts a server of the repositories of a world.
func (o *options) start(ctx context.Context, w *world.World, name string, warmup bool) *server {
	settings := world.Public + world.NoSearch + "[maintenance]\nenabled = false\n[fetch]\nverify_packs = false\n"
	if !warmup {
		settings += "[warmup]\nenabled = false\n"
	}
	own := world.Must(w.Start(ctx, "serve", name, settings, "--root", w.Root()))
	s := &server{Process: own, root: w.Root(), push: world.Must(own.PushAccess(ctx)),
		admin: world.Must(client.New("unix:"+filepath.Join(own.State, "admin.sock"), client.Options{}))}
	w.Defer(s.admin.Close)
	return s
}

// target is the address of a repository in a directory of the root.
func (s *server) target(path string) *loadgen.Target {
	return world.Must(loadgen.ParseTarget(s.URL+"/"+filepath.Base(path), false))
}

// drop empties the pack cache.
func (s *server) drop(ctx context.Context) {
	world.Must(s.admin.Repositories().DropPacks(ctx, connect.NewRequest(&packhorsev1.DropPacksRequest{All: true})))
}

const (
	// quietStep is the interval of samples in settle. In a quiet step the server uses at most quietCPU.
	quietStep, quietCPU = 20 * time.Millisecond, 500 * time.Microsecond
	// quietPatience is the maximum wait for a quiet server.
	quietPatience = 5 * time.Second
)

// settle waits until the server is quiet, and returns its CPU time until the last step in which it was not. Its
// children are not included.
func (s *server) settle(ctx context.Context) time.Duration {
	busy := world.Must(loadgen.ProcessCPU(s.Pid))
	last, quiet := busy, 0
	for end := time.Now().Add(quietPatience); quiet < 2 && time.Now().Before(end); {
		if !loadgen.Sleep(ctx, quietStep) {
			world.Check(ctx.Err())
		}
		now := world.Must(loadgen.ProcessCPU(s.Pid))
		if now-last <= quietCPU {
			quiet++
		} else {
			busy, quiet = now, 0
		}
		last = now
	}
	return busy
}

// sample is one measurement of the server or of git.
type sample struct {
	cpu    time.Duration // 0: not measured
	answer gitload.Answer
	missed bool   // the pack was not in the cache
	by     string // source of the pack; empty: unknown
}

// measure sends a request and measures the server until it is quiet again.
func (s *server) measure(ctx context.Context, t *loadgen.Target, request []byte) *sample {
	before := world.Must(s.Metrics(ctx))
	s.settle(ctx)
	began := world.Must(loadgen.ProcessCPU(s.Pid))
	answer := world.Must(gitload.FetchOnce(ctx, t, request, timeout))
	ended := s.settle(ctx)
	d := world.Must(s.Metrics(ctx)).Since(before)
	children := time.Duration(d.Sum(loadgen.GitCPU) * float64(time.Second))
	return &sample{cpu: ended - began + children, answer: *answer, missed: d.Sum(loadgen.Requests, loadgen.Miss) > 0,
		by: madeBy(d)}
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
func measureGit(ctx context.Context, repo string, request []byte) *sample {
	answer, cpu, err := gitload.UploadPack(ctx, repo, request)
	world.Check(err)
	return &sample{cpu: cpu, answer: *answer}
}
