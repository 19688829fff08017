// Package writes measures calls that write, merge, read history and archive without a working copy, against git and
// pushes to the same server.
package writes

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

// options are the flags of `packhorse-bench writes`.
type options struct {
	repo     string // empty: a synthetic one
	dir      string
	rounds   int
	commits  int
	callers  int
	clients  int
	merges   int
	branches int
	duration time.Duration

	program world.Program
}

const help = `Starts a server with a copy of a repository, and compares its calls with what git does. Without --repo the repository
is a synthetic one. CPU time is that of the server and its children, and of the processes of git. Values that are
compared are medians of --rounds.

The parts:

  commit        --commits commits of one file, one after the other, against git push of them to the same server: CPU time
                of the server, and the median time of a call against that of git push
  rate          commits per second of --callers callers to one branch, each to a file of its own, against pushes per
                second of --clients clients to branches of their own, which send what git sends without a process
  merge         CPU time of --merges merges from the history, against a process of git merge-tree for each
  check         CPU time to test --branches open branches, against git merge for each in a clone with shared objects
  last-commits  CPU time to find the last commit of each entry of --dir, against git log -1 for each, and the time of the
                same call again
  archive       time of a first archive (tar.gz) of the default branch against git archive, and of the same one again
                against Go's file server
  beside        ls-refs at a fixed rate beside 200 commits per second, against an idle server: 99th percentile

"packhorse-bench store commit-rate" measures commits in a store.`

// parts are in the order of the report.
var parts = []world.Part[*writes]{
	{Name: "commit", Measure: (*writes).commit},
	{Name: "rate", Measure: (*writes).rate},
	{Name: "merge", Measure: (*writes).merge},
	{Name: "check", Measure: (*writes).check},
	{Name: "last-commits", Measure: (*writes).lastCommits},
	{Name: "archive", Measure: (*writes).archive},
	{Name: "beside", Measure: (*writes).beside},
}

// Command returns `packhorse-bench writes`.
func Command(env loadgen.Env) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "writes",
		Short: "Measure commits, merges, history and archives by calls, against git",
		Long:  help,
		Example: `  packhorse-bench writes
  packhorse-bench writes commit rate --json
  packhorse-bench writes merge last-commits --repo git.git --dir t`,
	}
	f := cmd.Flags()
	f.StringVar(&o.repo, "repo", "", "`PATH` of a repository or bundle")
	f.StringVar(&o.dir, "dir", "", "`DIRECTORY` of the part last-commits (default: the root)")
	f.IntVar(&o.rounds, "rounds", 3, "runs of each comparison")
	f.IntVar(&o.commits, "commits", 50, "commits of each run of the part commit")
	f.IntVar(&o.callers, "callers", 32, "callers of the part rate")
	f.IntVar(&o.clients, "clients", 8, "clients that push")
	f.IntVar(&o.merges, "merges", 1000, "merges of the part merge")
	f.IntVar(&o.branches, "branches", 500, "branches of the part check")
	f.DurationVar(&o.duration, "duration", 5*time.Second, "duration of each run of the parts rate and beside")
	check := func() error {
		return cmp.Or(loadgen.Positive(f, "rounds", "commits", "merges", "branches", "duration"),
			loadgen.AreClients(f, "callers", "clients"))
	}
	return world.Command(cmd, env, &o.program, parts, check, func(ctx context.Context, _, dir string) (*writes, error) {
		return o.open(ctx, dir)
	})
}

// name is the repository of a part.
const name = "app"

// writes has the server of one part.
type writes struct {
	*options
	*world.World
	server *world.Process
	tree   *loadgen.ProcTree
	token  string
	client *gitload.Client
	tip    gitload.Commit
}

func (o *options) open(ctx context.Context, dir string) (w *writes, err error) {
	w = &writes{options: o}
	if w.World, err = world.New(dir, o.program); err != nil {
		return w, err
	}
	if o.repo == "" {
		err = w.AddHistory(ctx, name, 300, 2000)
	} else {
		err = w.Add(ctx, name, o.repo)
	}
	if err == nil {
		w.tip, err = gitload.Tip(ctx, w.Repository(name), "HEAD")
	}
	if err != nil {
		return w, err
	}
	settings := world.Public + world.NoSearch
	if w.server, err = w.Start(ctx, "serve", "server", settings, "--root", w.Root()); err != nil {
		return w, err
	}
	if err = w.server.Maintain(ctx, name); err != nil {
		return w, err
	}
	if w.tree, err = loadgen.NewProcTree(w.server.Pid); err != nil {
		return w, err
	}
	w.token, err = w.server.Token(ctx)
	w.client = gitload.NewClient(w.server.URL, w.token)
	w.Defer(w.client.Close)
	return w, err
}
