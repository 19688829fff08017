// Package cold measures packs that are in no cache: what a Packhorse server spends on them, against git upload-pack
// with the same request and the same repository.
package cold

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

// options are the flags of `packhorse-bench cold`.
type options struct {
	objects  int // of a synthetic repository; 0: none
	rounds   int
	cases    []string
	bitmaps  bool
	maintain bool
	check    bool // let git check the packs

	program world.Program
}

const help = `Measures packs that have to be made. For each repository a server is started, and git upload-pack answers the same
request over pipes, in turn. The repository is a bare one or a bundle. The run clones it with all refs, and repacks it
as an administrator would ("git gc", with bitmaps and a commit-graph). It does not write to REPO.

The cases (--case; the default is all of them):

  depth-1       the tip of the default branch with --depth 1, as GitHub's checkout action fetches it; empty cache
  depth-20      the same with --depth 20 and tags, as GitLab Runner fetches it; empty cache
  full          a clone of all branches and tags; empty cache
  blob-none     the same with --filter=blob:none; empty cache
  incremental   a fetch of the default branch by a client that is 20 commits behind and has everything before; empty
                cache
  push          depth-1, depth-20 and full after a push of 1, 10 and 50 commits, with the pack of the previous tip in
                the cache. The branch of a copy is rewound, the pack of the old tip is requested, the commits are pushed
                over HTTP, and the first request for the new tip is measured. Each measurement has its own copy
  first-job     the same with one commit, again and again, from the end of the push: capabilities, then depth 1. Once
                without warm-up and once with it ([warmup])

The server has no warm-up, search index and maintenance, and fetch.verify_packs is off. Verification is due once for
each state of a repository's files, but dropping the cache repeats it. Other settings are the defaults.

The responses are discarded after a check of their framing. Each distinct pack of the server is also checked by git:
"git index-pack --strict --fix-thin", then the connectivity of all objects, in a repository of the client's state. With
--check=false it is not.

The columns, of the server and of git; a value is the median of the rounds:

  CPU ms       user and system time of the server and its children, from the request until the server is quiet again,
               and of git upload-pack and its children
  first ms     time to the first byte of the pack, without the connection
  took ms      time to the last byte
  pack MB      size of the pack without side-bands
  by           source of the pack in the last round: git, if need be with the reason for which native gave up, or native
               with the times to select and to write the objects, and the shares of their bytes that came from packs on
               disk, came from packs in the cache, and were compressed again. Of first jobs, how many packs were in the
               cache (hit) or being made (follow)

--objects N adds a synthetic repository of N small objects, by default only with the case full. Ten million take some
minutes and about 3 GB of disk.`

// Command returns `packhorse-bench cold`.
func Command(env loadgen.Env) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "cold REPO...",
		Short: "Measure packs that are in no cache against git upload-pack",
		Long:  help,
		Example: `  packhorse-bench cold /srv/git/demo.git
  packhorse-bench cold demo.bundle --case push --rounds 1
  packhorse-bench cold --objects 10000000 --rounds 1`,
	}
	f := cmd.Flags()
	f.IntVar(&o.rounds, "rounds", 3, "measurements of each case; the report has their medians")
	f.StringSliceVar(&o.cases, "case", nil, "measure only these cases: "+strings.Join(caseNames, ", "))
	f.BoolVar(&o.bitmaps, "bitmaps", true, "the repository has reachability bitmaps")
	f.BoolVar(&o.maintain, "maintain", false, "the server maintains the repository before, and so makes its tip pack")
	f.BoolVar(&o.check, "check", true, "let git check each distinct pack of the server")
	f.IntVar(&o.objects, "objects", 0, "also measure a synthetic repository of this many small objects")
	asJSON := f.Bool("json", false, "print one JSON object")
	o.program.Flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, repos []string) error {
		err := cmp.Or(loadgen.Positive(f, "rounds"), o.validate(repos), o.program.Find())
		if err != nil {
			return err
		}
		r, err := o.run(cmd.Context(), env, repos)
		if err != nil {
			return loadgen.Interrupted(cmd.Context(), err)
		}
		if *asJSON {
			return loadgen.WriteJSON(env.Stdout, r)
		}
		return r.print(env.Stdout)
	}
	return cmd
}

func (o *options) validate(repos []string) error {
	for _, name := range o.cases {
		if !slices.Contains(caseNames, name) {
			return fmt.Errorf("--case %.40q: want %s", name, strings.Join(caseNames, ", "))
		}
	}
	switch {
	case len(repos) == 0 && o.objects == 0:
		return errors.New("no repository: give the path of one or of a bundle, or --objects N")
	case o.objects != 0 && (o.objects < minObjects || o.objects > maxObjects):
		return fmt.Errorf("--objects %d: from %d to %d", o.objects, minObjects, maxObjects)
	}
	return nil
}

// run measures all repositories in a temporary directory.
func (o *options) run(ctx context.Context, env loadgen.Env, paths []string) (*report, error) {
	dir, err := os.MkdirTemp("", "packhorse-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	version, err := gitload.RunGit(ctx, dir, nil, "version")
	if err != nil {
		return nil, err
	}
	r := &report{Git: strings.TrimPrefix(strings.TrimSpace(version), "git version "), Rounds: o.rounds, Bitmaps: o.bitmaps}
	if o.objects > 0 {
		paths = append(paths, "")
	}
	for i, path := range paths {
		run := &run{options: o, dir: filepath.Join(dir, fmt.Sprint(i)), path: path, stage: "preparing"}
		stop := loadgen.Progress(ctx, env.Stderr, run.progress)
		rows, err := run.measure(ctx)
		stop()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", run.progress(), err)
		}
		r.Repositories = append(r.Repositories, repository{run.name(), rows})
	}
	return r, nil
}

// report is the output of `packhorse-bench cold --json`. Values that were not measured are null.
type report struct {
	Git          string       `json:"git"` // its version
	Rounds       int          `json:"rounds"`
	Bitmaps      bool         `json:"bitmaps"`
	Repositories []repository `json:"repositories"`
}

// repository has the rows of one repository.
type repository struct {
	Name string `json:"name"`
	Rows []row  `json:"rows"`
}

// row is one case: medians of the server and of git upload-pack.
type row struct {
	Case     string   `json:"case"`
	Samples  int      `json:"samples"`
	Server   result   `json:"server"`
	Upload   result   `json:"git"`
	CPURatio *float64 `json:"cpu_ratio"`
	Objects  int      `json:"objects"`
	By       string   `json:"made_by"`
}

// result has the medians of one side of a row.
type result struct {
	CPU   *float64 `json:"cpu_ms"` // null for first jobs
	First float64  `json:"first_byte_ms"`
	Took  float64  `json:"took_ms"`
	Pack  float64  `json:"pack_mb"`
}

func newResult(list []*sample) result {
	median := func(of func(*sample) time.Duration) float64 {
		var all []float64
		for _, s := range list {
			all = append(all, loadgen.Milliseconds(of(s)))
		}
		return loadgen.Median(all)
	}
	r := result{First: median(func(s *sample) time.Duration { return s.answer.First }),
		Took: median(func(s *sample) time.Duration { return s.answer.Took }),
		Pack: loadgen.Round(float64(list[len(list)-1].answer.Pack)/1e6, 6)}
	if list[0].cpu > 0 {
		r.CPU = new(median(func(s *sample) time.Duration { return s.cpu }))
	}
	return r
}

// newRow summarizes the measurements of one row.
func newRow(s *series) row {
	last := s.ours[len(s.ours)-1]
	r := row{Case: s.name, Samples: len(s.ours), Server: newResult(s.ours), Upload: newResult(s.git), By: last.by,
		Objects: last.answer.Objects}
	if r.Server.CPU != nil && r.Upload.CPU != nil {
		r.CPURatio = loadgen.Ratio(*r.Server.CPU, *r.Upload.CPU, 4)
	}
	return r
}

func (r *report) print(w io.Writer) error {
	about := fmt.Sprintf("against git upload-pack %s, medians of %d", r.Git, r.Rounds)
	if !r.Bitmaps {
		about += ", without bitmaps"
	}
	fmt.Fprintln(w, about)
	for _, repo := range r.Repositories {
		fmt.Fprintf(w, "\n%s\n", repo.Name)
		var rows [][]string
		for _, r := range repo.Rows {
			ms := func(x float64) string { return fmt.Sprintf("%.1f", x) }
			a, b := r.Server, r.Upload
			rows = append(rows, []string{r.Case, loadgen.OrDash("%.1f", a.CPU), loadgen.OrDash("%.1f", b.CPU),
				loadgen.OrDash("%.3f", r.CPURatio), ms(a.First), ms(b.First), ms(a.Took), ms(b.Took),
				fmt.Sprintf("%.3f", a.Pack), fmt.Sprintf("%.3f", b.Pack), cmp.Or(r.By, "-")})
		}
		if err := loadgen.WriteTable(w, []string{"case", "CPU ms", "git", "ratio", "first ms", "git", "took ms", "git",
			"pack MB", "git", "by"}, rows); err != nil {
			return err
		}
	}
	return nil
}
