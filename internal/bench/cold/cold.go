// Package cold measures packs that are in no cache: what a Packhorse server spends on them, against git upload-pack
// with the same request and the same repository.
package cold

import (
	"context"
	"errors"
	"fmt"
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
	repos   []string
	objects int // of a synthetic repository; 0: none
	rounds  int
	cases   []string
	bitmaps bool
	check   bool // let git check the packs
	verify  bool // the server verifies the packs of the repository
	source  string
	timeout time.Duration
	json    bool

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

The server has no warm-up, search index and maintenance. Other settings are the defaults, except for fetch.verify_packs,
which is off. Verification is due once for each state of a repository's files, but dropping the cache repeats it. With
--verify it is on, and part of each measurement.

The responses are discarded after a check of their framing. Each distinct pack of the server is also checked by git:
"git index-pack --strict --fix-thin", then the connectivity of all objects, in a repository of the client's state. With
--check=false it is not.

The columns, of the server and of git; a value is the median of the rounds:

  CPU ms       user and system time of the server and its children, from the request until the server is quiet again,
               and of git upload-pack and its children. "ratio" is that of the two
  first ms     time to the first byte of the pack, without the connection
  took ms      time to the last byte
  pack MB      size of the pack without side-bands; "ratio" is that to git's
  processes    processes that the server started
  RSS MB       growth of the anonymous memory of the server and its children; of git the anonymous memory. The maximum of
               the rounds, sampled ten times per second
  by           source of the pack in the last round: git, if need be with the reason for which native gave up, or native
               with the times to select and to write the objects, and the shares of their bytes that came from packs on
               disk, came from packs in the cache, and were compressed again. Of first jobs, how many packs were in the
               cache (hit) or being made (follow)

--objects N adds a synthetic repository of N small objects, by default only with the case full. Ten million take some
minutes and about 3 GB of disk.

--source sets [packs] source of the server.`

// Command returns `packhorse-bench cold`.
func Command(env loadgen.Env) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "cold REPO...",
		Short: "Measure packs that are in no cache against git upload-pack",
		Long:  help,
		Example: `  packhorse-bench cold /srv/git/demo.git
  packhorse-bench cold demo.bundle --case push --rounds 1
  packhorse-bench cold demo.git --source git --bitmaps=false --json
  packhorse-bench cold --objects 10000000 --rounds 1`,
	}
	f := cmd.Flags()
	f.IntVar(&o.rounds, "rounds", 3, "measurements of each case; the report has their medians")
	f.StringSliceVar(&o.cases, "case", nil, "measure only these cases: "+strings.Join(caseNames, ", "))
	f.BoolVar(&o.bitmaps, "bitmaps", true, "the repository has reachability bitmaps")
	f.BoolVar(&o.check, "check", true, "let git check each distinct pack of the server")
	f.BoolVar(&o.verify, "verify", false, "the server verifies the repository's packs (fetch.verify_packs)")
	f.StringVar(&o.source, "source", "", "[packs] source of the server: auto, git or native (default: the server's)")
	f.IntVar(&o.objects, "objects", 0, "also measure a synthetic repository of this many small objects")
	f.DurationVar(&o.timeout, "timeout", 30*time.Minute, "timeout of a request")
	f.BoolVar(&o.json, "json", false, "print one JSON object")
	o.program.Flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.repos = args
		if err := o.validate(); err != nil {
			return err
		}
		if err := o.program.Find(); err != nil {
			return err
		}
		return loadgen.Interrupted(cmd.Context(), o.run(cmd.Context(), env))
	}
	return cmd
}

func (o *options) validate() error {
	for _, name := range o.cases {
		if !slices.Contains(caseNames, name) {
			return fmt.Errorf("--case %.40q: want %s", name, strings.Join(caseNames, ", "))
		}
	}
	switch {
	case len(o.repos) == 0 && o.objects == 0:
		return errors.New("no repository: give the path of one or of a bundle, or --objects N")
	case o.rounds < 1:
		return fmt.Errorf("--rounds %d: must be positive", o.rounds)
	case o.objects != 0 && (o.objects < minObjects || o.objects > maxObjects):
		return fmt.Errorf("--objects %d: from %d to %d", o.objects, minObjects, maxObjects)
	case o.timeout <= 0:
		return fmt.Errorf("--timeout %v: must be positive", o.timeout)
	case !slices.Contains([]string{"", "auto", "git", "native"}, o.source):
		return fmt.Errorf("--source %.40q: want auto, git or native", o.source)
	}
	return nil
}

// run measures all repositories in a temporary directory, and reports.
func (o *options) run(ctx context.Context, env loadgen.Env) error {
	dir, err := os.MkdirTemp("", "packhorse-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	version, err := gitload.RunGit(ctx, dir, nil, "version")
	if err != nil {
		return err
	}
	report := &report{Git: strings.TrimPrefix(strings.TrimSpace(version), "git version "), Rounds: o.rounds,
		Bitmaps: o.bitmaps, Verify: o.verify, Source: o.source, Repositories: []repository{}}
	paths := o.repos
	if o.objects > 0 {
		paths = append(slices.Clone(paths), "")
	}
	for i, path := range paths {
		run := &run{options: o, dir: filepath.Join(dir, fmt.Sprint(i)), path: path, stage: "preparing"}
		stop := loadgen.Progress(ctx, env.Stderr, run.progress)
		result, err := run.repository(ctx)
		stop()
		if err != nil {
			return fmt.Errorf("%s: %w", run.name(), err)
		}
		report.Repositories = append(report.Repositories, *result)
	}
	if o.json {
		return loadgen.WriteJSON(env.Stdout, report)
	}
	return report.print(env.Stdout)
}
