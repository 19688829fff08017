package mirror

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

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

// fleet runs `packhorse-bench ci` at the origin or at the mirror.
func (o *options) fleet(ctx context.Context, env loadgen.Env, mirrored bool) (f *fleetResult, err error) {
	dir, err := os.MkdirTemp("", "packhorse-bench-")
	if err != nil {
		return nil, err
	}
	w, err := o.open(ctx, "fleet", dir)
	defer func() { err = errors.Join(err, w.Close()) }()
	if err != nil {
		return nil, err
	}
	url, args := w.origin.url(), []string{}
	if mirrored {
		url = w.mirror.URL
		args = []string{"--server-pid", fmt.Sprint(w.mirror.Pid), "--ops", w.mirror.Ops}
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
	f.Name, f.Mirrored = "direct", mirrored
	if mirrored {
		f.Name = "mirror"
	}
	f.LinkMB = loadgen.Round(float64(w.origin.link.Bytes()-bytesBefore)/1e6, 3)
	f.OriginS = loadgen.Round((childrenCPU() - cpuBefore).Seconds(), 2)
	f.LsRefs, f.Fetches = w.origin.count("ls-refs"), w.origin.count("fetch")
	return f, nil
}
