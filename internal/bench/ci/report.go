package ci

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// ciReport is the output of `packhorse-bench ci --json`. Values that were not measured are null.
type ciReport struct {
	Profile   string              `json:"profile"`
	Runners   int                 `json:"runners"`
	ElapsedS  float64             `json:"elapsed_s"`
	Pipelines int                 `json:"pipelines"`
	Jobs      int                 `json:"jobs"` // without the failed ones
	Waiting   int                 `json:"jobs_waiting"`
	Errors    int                 `json:"errors"` // jobs and small requests
	JobsPerS  float64             `json:"jobs_per_s"`
	Job       loadgen.Percentiles `json:"job_ms"`
	First     loadgen.Percentiles `json:"first_job_first_byte_ms"` // of the pipelines from the second on
	MB        float64             `json:"mb"`                      // 10^6 received bytes of all responses to jobs
	MBPerS    float64             `json:"mb_per_s"`
	Small     loadgen.Percentiles `json:"ls_refs_ms"`

	CPUPerJob       *float64 `json:"cpu_s_per_job"` // user and system time of the server's process tree
	CPUPerGB        *float64 `json:"cpu_s_per_gb"`
	AnonRSS         *float64 `json:"anon_rss_mb"`
	ClientCPUPerJob float64  `json:"client_cpu_s_per_job"`

	Cache *cacheShares `json:"cache"`
	// in the first pipeline machines are up to 50 commits behind
	Settled          *cacheShares `json:"cache_after_first_pipeline"`
	Cold             *coldShare   `json:"cold_packs"`
	PackRuns         *int         `json:"pack_objects_runs"`
	DiskWritePerByte *float64     `json:"disk_write_per_byte"`

	Packs int `json:"packs"` // responses with a pack

	Kinds []kindReport `json:"kinds"`
}

// cacheShares are the shares of results of the server's pack cache.
type cacheShares struct {
	Hit    float64 `json:"hit"`
	Follow float64 `json:"follow"`
	Miss   float64 `json:"miss"`
	Saved  float64 `json:"hit_and_follow"`
}

// coldShare is the work for packs that were not in the cache, those of the warm-up included.
type coldShare struct {
	Packs     int     `json:"packs"`
	Share     float64 `json:"share"`             // of the packs that clients received
	GitPerJob float64 `json:"git_cpu_s_per_job"` // CPU time of git pack-objects
	InProcess float64 `json:"native_s_per_job"`  // time to select and write the objects of packs made in process
}

// kindReport is the result of one kind of job.
type kindReport struct {
	Tool  string              `json:"tool"`
	Fresh bool                `json:"fresh"` // on a new machine
	Jobs  int                 `json:"jobs"`
	MB    float64             `json:"mb"`
	Job   loadgen.Percentiles `json:"job_ms"`
}

func newCIReport(o *ciOptions, c *ciResult) *ciReport {
	r := &ciReport{
		Profile: o.profile, Runners: o.runners, ElapsedS: loadgen.Round(c.elapsed.Seconds(), 3), Pipelines: c.pipelines,
		Jobs:    len(c.jobs),
		Waiting: c.waiting, JobsPerS: loadgen.Round(loadgen.Rate(float64(len(c.jobs)), 1, c.elapsed), 2),
		Packs:  c.packs,
		Errors: c.failures.Count(),
	}
	var took, first loadgen.Samples
	bytes := int64(0)
	for _, j := range c.jobs {
		took = append(took, j.took)
		if j.first > 0 {
			first = append(first, j.first)
		}
		bytes += j.bytes
	}
	r.Job, r.First = took.Summarize(), first.Summarize()
	r.MB, r.MBPerS = loadgen.Round(float64(bytes)/1e6, 3), loadgen.Round(loadgen.Rate(float64(bytes), 1e6, c.elapsed), 2)
	if c.small != nil {
		r.Small = c.small.Latency().Summarize()
		r.Errors += c.small.Failures.Count()
	}
	if n := float64(len(c.jobs)); n > 0 {
		r.ClientCPUPerJob = loadgen.Round(c.clientCPU.Seconds()/n, 5)
		if c.usage != nil {
			r.CPUPerJob = new(loadgen.Round(c.usage.Cpu.Seconds()/n, 5))
		}
	}
	if c.usage != nil {
		r.AnonRSS = new(loadgen.Round(float64(c.usage.Anon)/1e6, 2))
		if bytes > 0 {
			r.CPUPerGB = new(loadgen.Round(c.usage.Cpu.Seconds()/(float64(bytes)/1e9), 4))
		}
	}
	r.metrics(c, float64(bytes))
	r.Kinds = kinds(c.jobs)
	return r
}

// metrics adds figures from the server's metrics.
func (r *ciReport) metrics(c *ciResult, bytes float64) {
	before, after := c.before, c.after
	if !after.IsFor(bytes, before) {
		return
	}
	d := after.Since(before)
	r.Cache = shares(d)
	if c.settled != nil {
		r.Settled = shares(after.Since(c.settled))
	}
	r.Cold = cold(c)
	r.PackRuns = new(int(d.Sum(loadgen.Commands, loadgen.PackGit)))
	if served := d.Sum(loadgen.Served); served > 0 {
		r.DiskWritePerByte = new(loadgen.Round(d.Sum(loadgen.Written)/served, 5))
	}
}

// cold adds up the work for packs that were not in the cache. It returns nil without jobs.
func cold(c *ciResult) *coldShare {
	if len(c.jobs) == 0 {
		return nil
	}
	d, jobs := c.after.Since(c.before), float64(len(c.jobs))
	packs := d.Sum(loadgen.Commands, loadgen.PackGit) + d.Native()
	return &coldShare{Packs: int(packs), Share: loadgen.Round(packs/float64(max(c.packs, 1)), 4),
		GitPerJob: loadgen.Round(d.Sum(loadgen.GitCPU, loadgen.PackGit)/jobs, 5),
		InProcess: loadgen.Round((d.Sum(loadgen.Select)+d.Sum(loadgen.Write))/jobs, 5)}
}

// shares are those of the packs in an increase, or nil without packs.
func shares(d loadgen.Metrics) *cacheShares {
	hit, follow, miss := d.Sum(loadgen.Requests, loadgen.Hit), d.Sum(loadgen.Requests, loadgen.Follow),
		d.Sum(loadgen.Requests, loadgen.Miss)
	all := hit + follow + miss
	if all <= 0 {
		return nil
	}
	return &cacheShares{loadgen.Round(hit/all, 4), loadgen.Round(follow/all, 4), loadgen.Round(miss/all, 4),
		loadgen.Round((hit+follow)/all, 4)}
}

// kinds adds up jobs by tool and state.
func kinds(jobs []doneJob) []kindReport {
	type kind struct {
		tool  Tool
		fresh bool
	}
	took, bytes := map[kind]loadgen.Samples{}, map[kind]int64{}
	for _, j := range jobs {
		k := kind{j.tool, j.fresh}
		took[k] = append(took[k], j.took)
		bytes[k] += j.bytes
	}
	list := []kindReport{}
	for k, s := range took {
		list = append(list, kindReport{k.tool.String(), k.fresh, len(s), loadgen.Round(float64(bytes[k])/1e6, 3),
			s.Summarize()})
	}
	slices.SortFunc(list, func(a, b kindReport) int {
		if c := cmp.Compare(a.Tool, b.Tool); c != 0 {
			return c
		}
		if a.Fresh {
			return -1
		}
		return 1
	})
	return list
}

// rows are the lines of the report.
func (r *ciReport) rows() []loadgen.Line {
	var rows []loadgen.Line
	add := func(name, format string, args ...any) {
		rows = append(rows, loadgen.Line{Name: name, Value: fmt.Sprintf(format, args...)})
	}
	add("jobs", "%d (%.2f/s) of %d pipelines, %d errors, %d not started", r.Jobs, r.JobsPerS, r.Pipelines, r.Errors,
		r.Waiting)
	add("job time", "%v", r.Job)
	add("first job", "%v to the first byte of its pack, after each push", r.First)
	add("received", "%.1f MB (%.1f MB/s)", r.MB, r.MBPerS)
	if r.CPUPerJob != nil {
		add("server CPU", "%.2f ms for each job", *r.CPUPerJob*1e3)
		if r.CPUPerGB != nil {
			rows[len(rows)-1].Value += fmt.Sprintf(", %.2f s/GB", *r.CPUPerGB)
		}
	}
	if r.AnonRSS != nil {
		add("server RSS", "%.1f MB anonymous", *r.AnonRSS)
	}
	add("client CPU", "%.2f ms for each job", r.ClientCPUPerJob*1e3)
	if c := r.Cache; c != nil {
		add("cache", "%.1f %% hit, %.1f %% follow, %.1f %% miss", c.Hit*100, c.Follow*100, c.Miss*100)
	}
	if c := r.Settled; c != nil {
		add("  later", "%.1f %% hit, %.1f %% follow, %.1f %% miss (without the first pipeline)", c.Hit*100, c.Follow*100,
			c.Miss*100)
	}
	if c := r.Cold; c != nil {
		add("cold packs", "%d (%.1f %% of the packs), for each job %.2f ms of git's CPU and %.2f ms in process", c.Packs,
			c.Share*100, c.GitPerJob*1e3, c.InProcess*1e3)
	}
	add("packs", "%d received", r.Packs)
	if r.PackRuns != nil {
		add("pack-objects", "%d runs", *r.PackRuns)
	}
	if r.DiskWritePerByte != nil {
		add("disk writes", "%.4f of the bytes served", *r.DiskWritePerByte)
	}
	add("ls-refs", "%v", r.Small)
	return rows
}

func (r *ciReport) print(w io.Writer) error {
	loadgen.WriteLines(w, r.rows())
	fmt.Fprintln(w)
	var rows [][]string
	for _, k := range r.Kinds {
		ms := func(v float64) string { return fmt.Sprintf("%.1f", v) }
		rows = append(rows, []string{k.name(), fmt.Sprint(k.Jobs), fmt.Sprintf("%.3f", k.MB/float64(max(k.Jobs, 1))),
			ms(k.Job.P50), ms(k.Job.P95), ms(k.Job.P99)})
	}
	return loadgen.WriteTable(w, []string{"kind of job", "jobs", "MB each", "p50 ms", "p95 ms", "p99 ms"}, rows)
}

// name describes a kind of job.
func (k *kindReport) name() string {
	if k.Fresh {
		return k.Tool + ", new"
	}
	return k.Tool
}
