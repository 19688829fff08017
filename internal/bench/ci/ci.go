// Package ci simulates a fleet of CI machines and measures the Git server: pipelines start many jobs while the branch
// moves.
package ci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

// ciOptions are the flags of `packhorse-bench ci`.
type ciOptions struct {
	url       string // empty: a server that the benchmark starts
	repo      string // the served repository's path; empty: the tip does not move
	runners   int
	jobs      int
	every     time.Duration
	profile   string
	fresh     float64 // share of jobs on new machines; -1: that of the profile
	serverPID int
	ops       string
	push      string // how commits reach the repository: by path or over HTTP
	noWarmup  bool   // our own server makes no pack before a request
	noSearch  bool   // our own server keeps no search index
	common    loadgen.Common

	program world.Program
}

const ciHelp = `Simulates a fleet of CI machines. Every few seconds new commits reach the default branch and a pipeline
starts. A pipeline is a group of jobs on the newest commit that start within a second. Each job is taken by a free
machine, which then builds for a second. A job does the work of git on its own connection: the capabilities, ls-refs,
and the fetch with its rounds of negotiation.

The machines implement the protocol themselves. Of their repositories they keep only the commits of their refs and the
boundary of the history, so that the fleet costs little beside the server. Their requests are byte for byte those of
git 2.39. One job of each kind runs first and is checked by git: it indexes the pack in a repository of that state, and
checks that all objects are connected. For every response the status, the framing, the side-bands and the final flush
are checked.

The measured server:

  --repo PATH       a Packhorse started for this run, on a copy of PATH, which is any repository on this machine; the
                    run starts after the server's first search index and
                    the maintenance of the repository
  URL --repo PATH   the server at URL, whose repository is PATH on this machine. THIS CHANGES PATH: the run pushes
                    commits to its default branch and makes refs/pipelines/N
  URL               the server at URL without pushes: the tip does not move, and machines become stale at random

The fleet (--profile):

  gitlab   GitLab Runner's "fetch" strategy: depth 20, the pipeline's commit and its branch. Half of the jobs are on new
           machines, as with autoscaling. The others find the repository of the machine's last job, at first 0 to 50
           commits behind. One machine in five uses --no-tags
  actions  GitHub's checkout action, always on new machines. Nine of ten jobs fetch depth 1 by commit, without tags. One
           fetches all branches and tags (fetch-depth: 0)
  mixed    of 20 machines, 9 as gitlab, 6 as actions, 4 that keep the whole history of the branch (Jenkins), 1 that
           clones everything

--fresh SHARE sets the share of jobs on new machines, for machines that keep their repository. With 0 all machines are
old, with 1 all are new. New machines are the most expensive for a server without a cache, so compare only figures of
the same share.

Random choices use the same seed in each run. Only the free machine for a job may differ.

The report (--json has the same under stable keys):

  jobs              "not started" counts jobs for which no machine was free before the end of the run, or whose push was
                    late. Then the server or this machine is too slow, and a larger --every gives a better comparison
  job time          from the first byte of a job's connection to the last byte of its pack
  first job         from the first byte of the connection of a pipeline's first job to the first byte of its pack, without
                    the first pipeline. --push http pushes through the server, which then makes popular packs in advance
                    ([warmup]). --no-warmup turns that off
  server CPU        of the process --server-pid and its descendants, or of the server of this run. That server updates its
                    search index after each push. Use --no-search to compare it with a server without search
  cache             results of the pack cache, from the metrics of the server of this run or at --ops. In the first
                    pipeline most machines are behind by different numbers of commits, so "later" excludes it
  cold packs        packs that were not in the cache, those of the warm-up included: the CPU time of the git processes
                    that made them, and the time to select and write the objects of those made in process. Both are
                    part of the server's CPU time. See also "packhorse-bench cold"
  pack-objects      runs of git pack-objects by the server's metrics
  ls-refs           a small request ten times per second during the run, measured from the time when it was due`

func Command(env loadgen.Env) *cobra.Command {
	var o ciOptions
	cmd := &cobra.Command{
		Use:   "ci [URL] [--repo PATH]",
		Short: "Measure a fleet of CI machines: pipelines that start many jobs while the branch moves",
		Long:  ciHelp,
		Example: `  packhorse-bench ci --repo /srv/git/demo.git
  packhorse-bench ci --repo . --profile mixed --runners 60 --duration 1m
  packhorse-bench ci http://127.0.0.1:8080/demo.git --repo /srv/git/demo.git --server-pid 4711 --json
  packhorse-bench ci https://git.example.com/demo.git --profile actions --runners 10`,
		Args: cobra.MaximumNArgs(1),
	}
	f := cmd.Flags()
	f.StringVar(&o.repo, "repo", "", "path of the repository; with URL, the repository of the URL, which gets pushes")
	f.StringVar(&o.profile, "profile", "gitlab", "the kinds of machines: gitlab, actions or mixed")
	f.Float64Var(&o.fresh, "fresh", -1, "share of jobs on new machines, 0 to 1 (default: that of the profile)")
	f.IntVar(&o.runners, "runners", 30, "machines")
	f.IntVar(&o.jobs, "jobs", 30, "jobs of each pipeline")
	f.DurationVar(&o.every, "every", 3*time.Second, "time from one pipeline to the next")
	f.DurationVar(&o.common.Duration, "duration", 30*time.Second, "how long the run starts jobs")
	f.DurationVar(&o.common.Timeout, "timeout", 2*time.Minute, "timeout of a request")
	f.BoolVar(&o.common.Insecure, "insecure", false, "accept any TLS certificate, self-signed ones too")
	f.BoolVar(&o.common.JSON, "json", false, "print one JSON object")
	f.IntVar(&o.serverPID, "server-pid", 0, "measure CPU and memory of this process and its descendants")
	f.StringVar(&o.ops, "ops", "", "the server's metrics, as http://127.0.0.1:9090/metrics")
	f.StringVar(&o.push, "push", "path", "how commits reach the repository of the server of this run: path or http")
	f.BoolVar(&o.noWarmup, "no-warmup", false, "the server of this run makes no pack before a request")
	f.BoolVar(&o.noSearch, "no-search", false, "the server of this run keeps no search index")
	o.program.Flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			o.url = args[0]
		}
		if err := cmp.Or(loadgen.AreClients(f, "runners", "jobs"), loadgen.Positive(f, "duration", "timeout"),
			o.check()); err != nil {
			return err
		}
		if o.url == "" {
			if err := o.program.Find(); err != nil {
				return err
			}
		}
		return loadgen.Interrupted(cmd.Context(), o.run(cmd.Context(), env))
	}
	return cmd
}

func (o *ciOptions) check() error {
	switch {
	case o.url == "" && o.repo == "":
		return errors.New("no server: give the URL of a repository, or --repo PATH, or both (see --help)")
	case o.every < 100*time.Millisecond:
		return fmt.Errorf("--every %v: at least 100ms", o.every)
	case o.url == "" && (o.serverPID != 0 || o.ops != ""):
		return errors.New("--server-pid and --ops need a URL: the server that is started for the run is always " +
			"watched")
	case o.push != "path" && o.push != "http":
		return fmt.Errorf("--push %.40q: want path or http", o.push)
	case o.url != "" && (o.push != "path" || o.noWarmup || o.noSearch):
		return errors.New("--push, --no-warmup and --no-search are for a server that is started for the run: give --repo " +
			"PATH alone")
	case o.fresh != -1 && !(o.fresh >= 0 && o.fresh <= 1):
		return fmt.Errorf("--fresh %v: want a share from 0 to 1", o.fresh)
	case ciProfiles[o.profile] == nil:
		return fmt.Errorf("--profile %.40q: want gitlab, actions or mixed", o.profile)
	}
	return nil
}

// run prepares a directory, measures, and reports.
func (o *ciOptions) run(ctx context.Context, env loadgen.Env) (err error) {
	defer world.Rescue(&err)
	dir := world.Must(os.MkdirTemp("", "packhorse-bench-"))
	defer os.RemoveAll(dir)
	stage := "preparing"
	stop := loadgen.Progress(ctx, env.Stderr, func() string { return stage })
	defer stop()

	title := ""
	var server *world.Process
	if o.url == "" {
		w, started := world.New(filepath.Join(dir, "world"), o.program)
		defer func() { err = errors.Join(err, w.Close()) }()
		world.Check(started)
		world.Check(w.Add(ctx, "bench", o.repo))
		server = world.Must(w.Start(ctx, "serve", "server", o.settings(), "--root", w.Root(), "--http", "127.0.0.1:0",
			"--public-read"))
		stage = "maintaining the repository"
		world.Check(server.Maintain(ctx, "bench"))
		title = "a new Packhorse on a copy of " + filepath.Base(gitload.Absolute(o.repo))
		o.url, o.ops, o.serverPID, o.repo = server.URL+"/bench.git", server.Ops, server.Pid, w.Repository("bench")
		if !o.noSearch {
			stage = "waiting for the server's index"
			world.Check(server.AwaitIndex(ctx))
		}
	}
	t := world.Must(loadgen.ParseTarget(o.url, o.common.Insecure))
	if title == "" {
		title = t.String()
	}
	scene := o.prepare(ctx, t, dir)
	if o.push == "http" {
		scene.pusher.env, scene.pusher.repo = world.Must(server.PushAccess(ctx)), o.url
	}
	stage = "checking one job of each kind with git"
	verified := world.Must(scene.verify(ctx, dir))
	stop()
	return o.report(env, title, world.Must(o.measure(ctx, env, scene)), verified)
}

// settings is the configuration of the server of this run.
func (o *ciOptions) settings() string {
	var text string
	if o.noWarmup {
		text += "[warmup]\nenabled = false\n"
	}
	if o.noSearch {
		text += world.NoSearch
	}
	return text
}

// report writes the result. Its error has the failures of jobs.
func (o *ciOptions) report(env loadgen.Env, title string, result *ciResult, verified int) (err error) {
	report := newCIReport(o, result)
	result.failures.Print(env.Stderr)
	result.small.Failures.Print(env.Stderr)
	if o.common.JSON {
		err = loadgen.WriteJSON(env.Stdout, report)
	} else {
		fmt.Fprintf(env.Stdout, "%s\nprofile %s, %d machines, %d jobs every %v, %v; %d kinds of job checked by git\n", title,
			o.profile,
			o.runners, o.jobs, o.every, result.elapsed.Round(time.Millisecond), verified)
		err = report.print(env.Stdout)
	}
	return errors.Join(err, result.failures.Err(), result.small.Failures.Err())
}

// part is a share of a fleet.
type part struct {
	tool   Tool
	weight int
	fresh  float64 // share of the jobs on a new machine
}

// ciProfiles are the fleets. --help describes them.
var ciProfiles = map[string][]part{
	"gitlab":  {{GitLab, 4, 0.5}, {GitLabNoTags, 1, 0.5}},
	"actions": {{Checkout, 9, 1}, {CheckoutAll, 1, 1}},
	"mixed": {{GitLab, 7, 0.5}, {GitLabNoTags, 2, 0.5}, {Checkout, 5, 1}, {CheckoutAll, 1, 1},
		{Jenkins, 4, 0.05}, {Clone, 1, 1}},
}

// fleet returns the profile with the share of new machines of --fresh.
func (o *ciOptions) fleet() []part {
	parts := slices.Clone(ciProfiles[o.profile])
	for i, p := range parts {
		if o.fresh >= 0 && p.tool.Keeps() {
			parts[i].fresh = o.fresh
		}
	}
	return parts
}

// maxBehind is the maximum number of commits that machines are behind at the start of a run.
const maxBehind = 50
