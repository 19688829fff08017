package cold

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// report is the output of `packhorse-bench cold --json`. Values that were not measured are null.
type report struct {
	Git          string       `json:"git"` // its version
	Rounds       int          `json:"rounds"`
	Bitmaps      bool         `json:"bitmaps"`
	Verify       bool         `json:"verify"` // the server verified the repository's packs
	Source       string       `json:"source"` // [packs] source; empty: the server's default
	Repositories []repository `json:"repositories"`
}

// repository has the rows of one repository.
type repository struct {
	Name string `json:"name"`
	Rows []row  `json:"rows"`
}

// row is one case: medians of the server and of git upload-pack.
type row struct {
	Case      string   `json:"case"`
	Pushed    int      `json:"pushed_commits"` // before the request; 0: the cache was empty
	Warmup    *bool    `json:"warmup"`         // of the case first-job
	Samples   int      `json:"samples"`
	CPU       *float64 `json:"cpu_ms"`
	GitCPU    *float64 `json:"git_cpu_ms"`
	CPURatio  *float64 `json:"cpu_ratio"`
	First     float64  `json:"first_byte_ms"`
	GitFirst  float64  `json:"git_first_byte_ms"`
	Took      float64  `json:"took_ms"`
	GitTook   float64  `json:"git_took_ms"`
	Pack      float64  `json:"pack_mb"`
	PackRatio float64  `json:"pack_ratio"`
	Objects   int      `json:"objects"`
	Processes *int     `json:"processes"`
	RSS       *float64 `json:"rss_growth_mb"`
	GitRSS    *float64 `json:"git_rss_mb"`
	By        string   `json:"made_by"`

	// Of the case first-job: packs that were in the cache, and that were being made.
	Hits    *int `json:"hits"`
	Follows *int `json:"follows"`
}

// newRow summarizes the measurements of one row.
func newRow(s *series) row {
	last := s.ours[len(s.ours)-1]
	r := row{Case: s.shape.name, Pushed: s.pushed, Warmup: s.warmup, Samples: len(s.ours), By: last.by,
		Objects: last.answer.Objects}
	first := func(s *sample) time.Duration { return s.answer.First }
	took := func(s *sample) time.Duration { return s.answer.Took }
	r.First, r.GitFirst = median(s.ours, first), median(s.git, first)
	r.Took, r.GitTook = median(s.ours, took), median(s.git, took)
	pack := func(list []*sample) float64 { return float64(list[len(list)-1].answer.Pack) }
	r.Pack = loadgen.Round(pack(s.ours)/1e6, 6)
	r.PackRatio = loadgen.Round(pack(s.ours)/pack(s.git), 4)
	if s.warmup != nil {
		r.Case = firstJob
		r.Hits, r.Follows = &s.hits, &s.follows
		return r
	}
	cpu := func(s *sample) time.Duration { return s.cpu }
	ours, git := median(s.ours, cpu), median(s.git, cpu)
	r.CPU, r.GitCPU = &ours, &git
	if git > 0 {
		r.CPURatio = new(loadgen.Round(ours/git, 4))
	}
	r.RSS, r.GitRSS = peak(s.ours), peak(s.git)
	r.Processes = new(0)
	for _, one := range s.ours {
		*r.Processes = max(*r.Processes, one.processes)
	}
	return r
}

// median is that of a duration, in milliseconds.
func median(list []*sample, of func(*sample) time.Duration) float64 {
	var all []time.Duration
	for _, s := range list {
		all = append(all, of(s))
	}
	slices.Sort(all)
	return loadgen.Milliseconds((all[(len(all)-1)/2] + all[len(all)/2]) / 2)
}

// peak is the maximum of the anonymous memory in MB.
func peak(list []*sample) *float64 {
	var most int64
	for _, s := range list {
		most = max(most, s.rss)
	}
	return new(loadgen.Round(float64(most)/1e6, 2))
}

// name describes the case.
func (r *row) name() string {
	switch {
	case r.Warmup != nil && *r.Warmup:
		return r.Case + ", warm-up"
	case r.Warmup != nil:
		return r.Case + ", no warm-up"
	case r.Pushed > 0:
		return fmt.Sprintf("%s after %d", r.Case, r.Pushed)
	}
	return r.Case
}

// columns are the heads of the table.
var columns = []string{"case", "CPU ms", "git", "ratio", "first ms", "git", "took ms", "git", "pack MB", "ratio",
	"processes", "RSS MB", "git", "by"}

// values returns the row of the table.
func (r *row) values() []string {
	ms := func(x float64) string { return fmt.Sprintf("%.1f", x) }
	processes, by := "-", cmp.Or(r.By, "-")
	if r.Processes != nil {
		processes = fmt.Sprint(*r.Processes)
	}
	if r.Hits != nil {
		by = fmt.Sprintf("%d hit, %d follow of %d", *r.Hits, *r.Follows, r.Samples)
	}
	return []string{r.name(), loadgen.OrDash("%.1f", r.CPU), loadgen.OrDash("%.1f", r.GitCPU),
		loadgen.OrDash("%.3f", r.CPURatio), ms(r.First), ms(r.GitFirst), ms(r.Took), ms(r.GitTook),
		fmt.Sprintf("%.3f", r.Pack), fmt.Sprintf("%.3f", r.PackRatio), processes, loadgen.OrDash("%.0f", r.RSS),
		loadgen.OrDash("%.0f", r.GitRSS), by}
}

// about describes the run.
func (r *report) about() string {
	text := fmt.Sprintf("against git upload-pack %s, medians of %d", r.Git, r.Rounds)
	if !r.Bitmaps {
		text += ", without bitmaps"
	}
	if r.Verify {
		text += ", with verification of packs"
	}
	if r.Source != "" {
		text += ", source " + r.Source
	}
	return text
}

func (r *report) print(w io.Writer) error {
	fmt.Fprintln(w, r.about())
	for _, repo := range r.Repositories {
		fmt.Fprintf(w, "\n%s\n", repo.Name)
		var rows [][]string
		for _, row := range repo.Rows {
			rows = append(rows, row.values())
		}
		if err := loadgen.WriteTable(w, columns, rows); err != nil {
			return err
		}
	}
	return nil
}
