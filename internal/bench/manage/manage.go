// Package manage measures forks, the removal of objects, and lists of repositories, against git.
package manage

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

// options are the flags of `packhorse-bench manage`.
type options struct {
	repo         string // empty: a synthetic one
	rounds       int
	samples      int
	forks        int
	repositories int
	packs        int
	packSize     int
	duration     time.Duration

	program world.Program
}

const help = `Starts a server, and compares what it does to repositories with what git does. Without --repo the repository is a
synthetic one. Values that are compared are medians of --rounds.

The parts:

  fork     a fork with 100 refs: the median time of --samples calls against that of git clone --bare --shared; and the
           space of its files
  forks    --forks forks of a repository: space on disk against the repository alone, and the packs made when each fork
           is cloned
  collect  CPU time to remove the objects of a deleted branch against git repack -d --cruft, in copies
  beside   ls-refs at a fixed rate during collections, against an idle server: 99th percentile
  purge    an object in one of --packs packs of --pack-size megabytes: time until it is unreadable; time until all copies are
           gone, against git repack -a -d
  list     time to list --repositories repositories
  backup   time of a backup of --repositories unchanged repositories against rsync -a of their root`

// parts are in the order of the report.
var parts = []world.Part[*manage]{
	{Name: "fork", Measure: (*manage).fork},
	{Name: "forks", Measure: (*manage).manyForks},
	{Name: "collect", Measure: (*manage).collect},
	{Name: "beside", Measure: (*manage).beside},
	{Name: "purge", Measure: (*manage).purge},
	{Name: "list", Measure: (*manage).list},
	{Name: "backup", Measure: (*manage).backup},
}

// Command returns `packhorse-bench manage`.
func Command(env loadgen.Env) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "manage",
		Short: "Measure forks, collections and lists of repositories, against git",
		Long:  help,
		Example: `  packhorse-bench manage
  packhorse-bench manage forks --repo git.git --forks 1000
  packhorse-bench manage list --repositories 10000 --json`,
	}
	f := cmd.Flags()
	f.StringVar(&o.repo, "repo", "", "`PATH` of a repository or bundle")
	f.IntVar(&o.rounds, "rounds", 3, "runs of each comparison")
	f.IntVar(&o.samples, "samples", 50, "calls of each run of the part fork")
	f.IntVar(&o.forks, "forks", 100, "forks of the part forks")
	f.IntVar(&o.repositories, "repositories", 10000, "repositories of the parts list and backup")
	f.IntVar(&o.packs, "packs", 50, "packs of the part purge")
	f.IntVar(&o.packSize, "pack-size", 20, "their size in `MEGABYTES`")
	f.DurationVar(&o.duration, "duration", 5*time.Second, "duration of each run of the part beside")
	check := func() error {
		return cmp.Or(loadgen.Positive(f, "rounds", "samples", "forks", "repositories", "packs", "pack-size",
			"duration"))
	}
	return world.Command(cmd, env, &o.program, parts, check, func(ctx context.Context, part, dir string) (*manage, error) {
		return o.open(ctx, part, dir)
	})
}

// name is the repository of a part.
const name = "app"

// manage has the server of one part.
type manage struct {
	*options
	*world.World
	server *world.Process
	tree   *loadgen.ProcTree
	client *client.Client
	tip    gitload.Commit
}

func (o *options) open(ctx context.Context, part, dir string) (m *manage, err error) {
	m = &manage{options: o}
	if m.World, err = world.New(dir, o.program); err != nil {
		return m, err
	}
	switch {
	case part == "purge":
		err = gitload.SynthesizePacks(ctx, m.Repository(name), o.packs, o.packSize, secret)
	case o.repo == "" || part == "list" || part == "backup":
		err = m.AddHistory(ctx, name, 300, 2000)
	default:
		err = m.Add(ctx, name, o.repo)
	}
	if err == nil {
		m.tip, err = gitload.Tip(ctx, m.Repository(name), "HEAD")
	}
	if err == nil && (part == "list" || part == "backup") {
		err = m.AddRepositories(name, m.tip.ID, m.repositories)
	}
	if err != nil {
		return m, err
	}
	if m.server, err = m.Start(ctx, "serve", "server", world.Public+world.NoSearch, "--root", m.Root()); err != nil {
		return m, err
	}
	if m.client, err = m.server.Client(); err != nil {
		return m, err
	}
	m.Defer(m.client.Close)
	if part != "purge" {
		err = m.server.Maintain(ctx, name)
	}
	if err != nil {
		return m, err
	}
	m.tree, err = loadgen.NewProcTree(m.server.Pid)
	return m, err
}
