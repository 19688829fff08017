// Package ci measures what a fleet of CI machines asks of a Git server: pipelines that start many jobs while the branch
// moves.
package ci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/fleet"
	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// ciOptions are the flags of `packhorse-bench ci`.
type ciOptions struct {
	url       string // empty: a server of our own
	repo      string // the served repository's path; empty: the tip stays
	runners   int
	jobs      int
	every     time.Duration
	profile   string
	fresh     float64 // share of jobs on new machines; -1: the profile's
	html      string
	serverPID int
	ops       string
	push      string // how commits come to the repository: by its path, or over HTTP
	noWarmup  bool   // the server of our own makes no pack before it is asked for
	noSearch  bool   // it keeps no index for search
	common    loadgen.Common

	server gitload.Server
}

const ciHelp = `Simulates a fleet of CI machines. Every few seconds new commits come to the default branch, and a pipeline starts: a herd
of jobs on the newest commit, all within a second, each taken by a free machine, which then builds for a second. A job is what
git does for it: the capabilities, ls-refs, and the fetch with its rounds of negotiation, on a connection of its own.

The machines speak the protocol themselves and remember of their repositories only which commits they are at and where
history ends, so that the fleet costs little beside the server. What they send is, byte for byte, what git 2.39 sends. One job of
each kind goes first and is checked by git: the pack is indexed in a repository of that state, and all has to be connected. Of
every answer the status, the framing, the side-bands and the final flush are checked.

What is measured:

  --repo PATH       a Packhorse started for this run, on a copy of PATH (any repository on this machine); the run begins when it has
                    made its first index for search
  URL --repo PATH   the server at URL, whose repository is PATH on this machine. PATH IS CHANGED: commits are pushed to its
                    default branch, and refs/pipelines/N are made
  URL               the server at URL as it is: nothing is pushed, the tip stays, and machines become stale at random

What the fleet is (--profile):

  gitlab   GitLab Runner's "fetch" strategy: depth 20, the pipeline's commit and its branch. Half of the jobs are on new machines, as
           autoscaled ones are; the others find the repository that the machine's last job left, at first 0 to 50 commits
           behind. One machine in five runs with --no-tags
  actions  GitHub's checkout action, always on new machines: nine of ten jobs depth 1 by commit, without tags, one all
           branches and tags (fetch-depth: 0)
  mixed    of 20 machines 9 as gitlab, 6 as actions, 4 keep the whole history of the branch (Jenkins), one clones everything

--fresh SHARE puts another share of the jobs of machines that keep their repository on new ones: 0 is a fleet that stays, 1 one that
never does. A new machine costs a server that keeps nothing most, so compare figures of the same share only.

Chance is drawn from the same seed in each run. Only who is free when may differ.

What the report says (--json has the same under stable keys):

  jobs              "not begun" are those of pipelines that were due for which no machine was free, or whose push came too late, before
                    the run ended: the server (or this machine) does not keep up, and a larger --every compares better
  job time          from the first byte of a job's connection to the last of its pack
  first job         from the first byte of the connection of a pipeline's first job to the first byte of its pack, for the pipelines from
                    the second on. --push http pushes through the server of our own, which then makes popular packs beforehand
                    ([warmup]); --no-warmup turns that off
  server CPU        of the process --server-pid and all below it (of a server of our own always). Ours brings its index for search up to
                    date after each push; a server that has no search is to be compared with --no-search
  cache             how packs were answered, by the server's own metrics (a Packhorse on this machine, or --ops); in the first
                    pipeline nearly every machine is behind by another number of commits, so "later" leaves it out
  distinct          the different requests among those that brought a pack, from the bench's own log of them: by their bytes, as a
                    cache keys them that hashes the request, and by what they mean: the same objects for the same
                    repository. Beside each the share of packs that a cache with that key and no limit would have had
  pack-objects      git pack-objects runs by the server's metrics, for each request of distinct meaning
  ls-refs           a small request ten times a second meanwhile, from the time that it was due

--html writes the same as one page with curves over time.`

func Command(env loadgen.Env) *cobra.Command {
	var o ciOptions
	cmd := &cobra.Command{
		Use:   "ci [URL] [--repo PATH]",
		Short: "Measure a fleet of CI machines: pipelines that start herds of jobs while the tip moves",
		Long:  ciHelp,
		Example: `  packhorse-bench ci --repo /srv/git/demo.git --html report.html
  packhorse-bench ci --repo . --profile mixed --runners 60 --duration 1m
  packhorse-bench ci http://127.0.0.1:8080/demo.git --repo /srv/git/demo.git --server-pid 4711 --json
  packhorse-bench ci https://git.example.com/demo.git --profile actions --runners 10`,
		Args: cobra.MaximumNArgs(1),
	}
	f := cmd.Flags()
	f.StringVar(&o.repo, "repo", "", "path of the repository; with URL the one behind it, which is pushed to")
	f.StringVar(&o.profile, "profile", "gitlab", "what the machines run: gitlab, actions or mixed")
	f.Float64Var(&o.fresh, "fresh", -1, "share of jobs on new machines, 0 to 1 (default: the profile's)")
	f.IntVar(&o.runners, "runners", 30, "machines")
	f.IntVar(&o.jobs, "jobs", 30, "jobs of each pipeline")
	f.DurationVar(&o.every, "every", 3*time.Second, "time from one pipeline to the next")
	f.DurationVar(&o.common.Duration, "duration", 30*time.Second, "how long new jobs are begun")
	f.DurationVar(&o.common.Timeout, "timeout", 2*time.Minute, "give up on a request that takes this long")
	f.BoolVar(&o.common.Insecure, "insecure", false, "accept any TLS certificate, self-signed ones too")
	f.BoolVar(&o.common.JSON, "json", false, "print one JSON object")
	f.StringVar(&o.html, "html", "", "write a page with curves to this file")
	f.IntVar(&o.serverPID, "server-pid", 0, "measure CPU and memory of this process and its descendants")
	f.StringVar(&o.ops, "ops", "",
		"the server's metrics (default: http://127.0.0.1:9090/metrics if the server is on this machine)")
	f.StringVar(&o.push, "push", "path", "how commits come to the repository of a server of our own: path or http")
	f.BoolVar(&o.noWarmup, "no-warmup", false, "have the server of our own make no pack before it is asked for")
	f.BoolVar(&o.noSearch, "no-search", false, "have the server of our own keep no index for search")
	o.server.Flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			o.url = args[0]
		}
		if err := o.check(); err != nil {
			return err
		}
		if o.url == "" {
			if err := o.server.Find(); err != nil {
				return err
			}
		}
		return loadgen.Interrupted(cmd.Context(), o.run(cmd.Context(), env))
	}
	return cmd
}

func (o *ciOptions) check() error {
	o.common.Clients = o.runners
	switch {
	case o.url == "" && o.repo == "":
		return errors.New("what is to be measured? give the URL of a repository, or --repo PATH, or both (see --help)")
	case o.runners < 1 || o.runners > loadgen.MaxClients:
		return fmt.Errorf("--runners %d: from 1 to %d", o.runners, loadgen.MaxClients)
	case o.jobs < 1 || o.jobs > loadgen.MaxClients:
		return fmt.Errorf("--jobs %d: from 1 to %d", o.jobs, loadgen.MaxClients)
	case o.every < 100*time.Millisecond:
		return fmt.Errorf("--every %v: at least 100ms", o.every)
	case o.url == "" && (o.serverPID != 0 || o.ops != ""):
		return errors.New("--server-pid and --ops are for a server with a URL: the one that is started for the run is " +
			"watched anyway")
	case o.push != "path" && o.push != "http":
		return fmt.Errorf("--push %.40q: path or http", o.push)
	case o.url != "" && (o.push != "path" || o.noWarmup || o.noSearch):
		return errors.New("--push, --no-warmup and --no-search are for a server that is started for the run: give --repo " +
			"PATH alone")
	case o.fresh != -1 && !(o.fresh >= 0 && o.fresh <= 1):
		return fmt.Errorf("--fresh %v: a share is from 0 to 1", o.fresh)
	case ciProfiles[o.profile] == nil:
		return fmt.Errorf("--profile %.40q: want gitlab, actions or mixed", o.profile)
	}
	return o.common.Check()
}

// run sets the scene in a directory of its own, measures, and reports.
func (o *ciOptions) run(ctx context.Context, env loadgen.Env) (err error) {
	dir, err := os.MkdirTemp("", "packhorse-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	stop := loadgen.Progress(ctx, env.Stderr, func() string { return "preparing" })
	defer func() { stop() }()

	title := ""
	if o.url == "" {
		server, err := gitload.StartServer(ctx, dir, o.repo, o.server.Program, nil, o.settings())
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Stop()) }()
		title = "a Packhorse of its own on a copy of " + filepath.Base(gitload.Absolute(o.repo))
		o.url, o.ops, o.serverPID, o.repo = server.URL, server.Ops, server.Pid, server.Repo
		if !o.noSearch {
			stop()
			stop = loadgen.Progress(ctx, env.Stderr, func() string { return "waiting for the server's index" })
			if err := server.AwaitIndex(ctx); err != nil {
				return err
			}
			stop()
			stop = loadgen.Progress(ctx, env.Stderr, func() string { return "preparing" })
		}
	}
	t, err := loadgen.ParseTarget(o.url, o.common.Insecure)
	if err != nil {
		return err
	}
	if title == "" {
		title = t.String()
	}
	scene, err := o.prepare(ctx, t, dir)
	if err != nil {
		return err
	}
	if o.push == "http" {
		if err := scene.pusher.overHTTP(ctx, o.server.Program, o.url, filepath.Join(dir, "state")); err != nil {
			return err
		}
	}
	stop()
	stop = loadgen.Progress(ctx, env.Stderr, func() string { return "checking one job of each kind with git" })
	verified, err := scene.verify(ctx, dir)
	if err != nil {
		return err
	}
	stop()
	result, err := o.measure(ctx, env, scene)
	if err != nil {
		return err
	}
	return o.report(env, title, result, verified)
}

// settings is the configuration of the server of our own.
func (o *ciOptions) settings() string {
	var text string
	if o.noWarmup {
		text += "[warmup]\nenabled = false\n"
	}
	if o.noSearch {
		text += "[search]\nenabled = false\n"
	}
	return text
}

// report writes what the fleet did, as was asked for; its error has the failures of jobs.
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
		report.print(env.Stdout)
	}
	if o.html != "" && err == nil {
		err = writeHTML(o.html, title, o, report, result)
	}
	return errors.Join(err, result.failures.Err(), result.small.Failures.Err())
}

// part is a share of a fleet.
type part struct {
	tool   fleet.Tool
	weight int
	fresh  float64 // share of the jobs that are on a new machine
}

// ciProfiles are the fleets; --help describes them.
var ciProfiles = map[string][]part{
	"gitlab":  {{fleet.GitLab, 4, 0.5}, {fleet.GitLabNoTags, 1, 0.5}},
	"actions": {{fleet.Checkout, 9, 1}, {fleet.CheckoutAll, 1, 1}},
	"mixed": {{fleet.GitLab, 7, 0.5}, {fleet.GitLabNoTags, 2, 0.5}, {fleet.Checkout, 5, 1}, {fleet.CheckoutAll, 1, 1},
		{fleet.Jenkins, 4, 0.05}, {fleet.Clone, 1, 1}},
}

// fleet is the profile with the share of new machines that was asked for.
func (o *ciOptions) fleet() []part {
	parts := slices.Clone(ciProfiles[o.profile])
	for i, p := range parts {
		if o.fresh >= 0 && p.tool.Keeps() {
			parts[i].fresh = o.fresh
		}
	}
	return parts
}

// maxBehind is by how many commits machines are stale at most when a run begins.
const maxBehind = 50
