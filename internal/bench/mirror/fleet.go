package mirror

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/packhorse-git/packhorse/internal/bench/ci"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// fleetResult is the result of one fleet. The names are those of `packhorse-bench ci --json`.
type fleetResult struct {
	Name     string              `json:"name"`
	Jobs     int                 `json:"jobs"`
	Waiting  int                 `json:"jobs_waiting"`
	Errors   int                 `json:"errors"`
	Job      loadgen.Percentiles `json:"job_ms"`
	First    loadgen.Percentiles `json:"first_job_first_byte_ms"`
	MB       float64             `json:"mb"`
	CPU      *float64            `json:"cpu_s_per_job"` // of the mirror
	LinkMB   float64             `json:"link_mb"`
	LsRefs   int                 `json:"origin_ls_refs"`
	Fetches  int                 `json:"origin_fetches"`
	OriginS  float64             `json:"origin_cpu_s"`
	Mirrored bool                `json:"mirrored"`
}

func fleetName(mirrored bool) string {
	if mirrored {
		return "mirror"
	}
	return "direct"
}

// fleet runs `packhorse-bench ci` at the origin or at the mirror.
func (o *options) fleet(ctx context.Context, env loadgen.Env, dir string, mirrored bool) (f *fleetResult, err error) {
	w, err := o.newWorld(ctx, dir, "always")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	url, args := w.origin.url(), []string{}
	if mirrored {
		url = w.mirror.url
		args = []string{"--server-pid", fmt.Sprint(w.mirror.Pid), "--ops", w.mirror.ops}
		if err := w.hydrate(ctx); err != nil {
			return nil, err
		}
	}
	var out bytes.Buffer
	env.Stdout = &out
	cmd := ci.Command(env)
	cmd.SetArgs(append([]string{url + "/app.git", "--repo", w.repo(), "--json", "--profile", o.profile,
		"--runners", fmt.Sprint(o.runners), "--jobs", fmt.Sprint(o.jobs), "--every", o.every.String(),
		"--duration", o.duration.String()}, args...))
	cmd.SetOut(io.Discard)
	cmd.SetErr(env.Stderr)
	w.origin.reset()
	bytesBefore, cpuBefore := w.origin.link.Bytes(), childrenCPU()
	if err := cmd.ExecuteContext(ctx); err != nil {
		return nil, fmt.Errorf("the fleet: %w", err)
	}
	f = &fleetResult{}
	if err := json.Unmarshal(out.Bytes(), f); err != nil {
		return nil, err
	}
	f.Name, f.Mirrored = fleetName(mirrored), mirrored
	f.LinkMB = loadgen.Round(float64(w.origin.link.Bytes()-bytesBefore)/1e6, 3)
	f.OriginS = loadgen.Round((childrenCPU() - cpuBefore).Seconds(), 2)
	f.LsRefs, f.Fetches = w.origin.count("ls-refs"), w.origin.count("fetch")
	return f, nil
}

// print writes the report for people.
func (r *report) print(out io.Writer) {
	if len(r.Fleets) > 0 {
		fmt.Fprintf(out, "%-8s %6s %8s %10s %10s %10s %9s %9s %9s %11s %10s\n", "fleet", "jobs", "waiting", "p50 ms",
			"p95 ms", "first ms", "jobs' MB", "link MB", "ls-refs", "fetches", "origin CPU")
		for _, f := range r.Fleets {
			fmt.Fprintf(out, "%-8s %6d %8d %10.1f %10.1f %10.1f %9.1f %9.1f %9d %11d %8.2f s\n", f.Name, f.Jobs, f.Waiting,
				f.Job.P50, f.Job.P95, f.First.P50, f.MB, f.LinkMB, f.LsRefs, f.Fetches, f.OriginS)
		}
	}
	for _, f := range r.Figures {
		verdict := "reached"
		if !f.Reached {
			verdict = "MISSED"
		}
		fmt.Fprintf(out, "%-12s %-52s %-40s %s\n", f.Part, f.What+": "+f.Goal, f.Got, verdict)
	}
}
