package mirror

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/bench/ci"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

// fleetResult is the result of one fleet. The names are those of `packhorse-bench ci --json`.
type fleetResult struct {
	Jobs    int                 `json:"jobs"`
	Waiting int                 `json:"jobs_waiting"`
	Job     loadgen.Percentiles `json:"job_ms"`
	First   loadgen.Percentiles `json:"first_job_first_byte_ms"`

	linkMB float64
	origin string // the work of the origin
}

func (f *fleetResult) String() string {
	return fmt.Sprintf("%d jobs, %d not started, p95 %.1f ms, first %.1f ms", f.Jobs, f.Waiting, f.Job.P95, f.First.P50)
}

// fleet runs the jobs at the origin, and then the same ones at a mirror of it.
func (w *pair) fleet(ctx context.Context) []world.Figure {
	direct := w.jobs(ctx, w.origin.url())
	other := world.Must(w.open(ctx, w.env, "fleet", filepath.Join(w.Dir, "mirrored-fleet")))
	defer other.Close()
	other.hydrate(ctx)
	mirrored := other.jobs(ctx, other.mirror.URL, "--server-pid", fmt.Sprint(other.mirror.Pid), "--ops", other.mirror.Ops)
	ratio := mirrored.linkMB / direct.linkMB
	return []world.Figure{
		world.NewFigure("p50 of a job against the origin's", "<= 1", mirrored.Job.P50/direct.Job.P50,
			mirrored.Job.P50 <= direct.Job.P50, "%.1f ms, direct %.1f ms", mirrored.Job.P50, direct.Job.P50),
		world.NewFigure("jobs that did not start with the mirror", "0", float64(mirrored.Waiting), mirrored.Waiting == 0,
			"%v; direct: %v", mirrored, direct),
		world.NewFigure("bytes over the link against the origin's", "<= 0.1", ratio, ratio <= 0.1,
			"%.3f MB, direct %.3f MB; %s; direct %s", mirrored.linkMB, direct.linkMB, mirrored.origin, direct.origin),
	}
}

// jobs runs `packhorse-bench ci`.
func (w *pair) jobs(ctx context.Context, url string, args ...string) *fleetResult {
	var out bytes.Buffer
	env := w.env
	env.Stdout = &out
	cmd := ci.Command(env)
	cmd.SetArgs(append([]string{url + "/app.git", "--repo", w.repo(), "--json", "--profile", w.profile,
		"--runners", fmt.Sprint(w.runners), "--jobs", fmt.Sprint(w.options.jobs), "--every", w.every.String(),
		"--duration", w.duration.String()}, args...))
	cmd.SetOut(io.Discard)
	cmd.SetErr(env.Stderr)
	w.origin.reset()
	before, cpu := w.origin.link.Bytes(), world.ChildrenCPU()
	world.Check(cmd.ExecuteContext(ctx))
	f := &fleetResult{}
	world.Check(json.Unmarshal(out.Bytes(), f))
	f.linkMB = float64(w.origin.link.Bytes()-before) / 1e6
	f.origin = fmt.Sprintf("%d ls-refs, %d fetches, %.2f s of CPU at the origin", w.origin.count("ls-refs"),
		w.origin.count("fetch"), (world.ChildrenCPU() - cpu).Seconds())
	return f
}
