// Package mirror measures a mirror. A fleet of CI machines works on an origin behind a slow link, with and without the
// mirror. Further figures show what a mirror has to reach.
package mirror

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

// options are the flags of `packhorse-bench mirror`.
type options struct {
	repo     string // empty: a synthetic one
	rate     float64
	delay    time.Duration
	runners  int
	jobs     int
	every    time.Duration
	duration time.Duration
	profile  string
	clients  int
	outage   time.Duration
	reads    int
	mirrors  int
	window   time.Duration

	program world.Program
}

const help = `Starts an origin (git http-backend behind a slow link) and a mirror of it (packhorse mirror), and measures both.

The parts:

  fleet        the fleet of "packhorse-bench ci", with the same machines and jobs twice: directly at the origin, and at
               the mirror. "first" is the first byte for the first job after a push. The CPU time of the origin is that
               of its git processes, those that push included
  storm        --clients fetch one new commit at once: requests to the origin, and packs that the mirror made
  first-byte   ls-refs of a mirror that checks its origin, against ls-refs of the origin, medians of 20
  first-clone  git clone through an empty mirror against one of the origin, whole and with depth 1
  outage       20 clones per second of known commits while the origin refuses connections for --outage: failures
  stale        --reads of a branch that moves all the time: reads that miss a change made more than a second before
  webhook      from the delivery of a webhook to the new commit in the mirror's refs, median of 20
  unchanged    200 ls-remote per second on --mirrors unchanged repositories: requests to the origin and CPU of the mirror.
               The origin repeats its answers, so that it costs this machine little

All times include the work of the clients on the same machine.`

// Command returns `packhorse-bench mirror`.
func Command(env loadgen.Env) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "mirror",
		Short: "Measure a mirror of an origin behind a slow link, against the origin",
		Long:  help,
		Example: `  packhorse-bench mirror
  packhorse-bench mirror fleet --repo /srv/git/demo.git --rate 5
  packhorse-bench mirror outage --outage 10m`,
	}
	f := cmd.Flags()
	f.StringVar(&o.repo, "repo", "", "path of the origin's repository (default: a synthetic one of 30 MB)")
	f.Float64Var(&o.rate, "rate", 20, "megabytes per second of the link")
	f.DurationVar(&o.delay, "delay", 10*time.Millisecond, "delay of the link in each direction")
	f.StringVar(&o.profile, "profile", "gitlab", "the kinds of machines, as in packhorse-bench ci")
	f.IntVar(&o.runners, "runners", 20, "machines of the fleet")
	f.IntVar(&o.jobs, "jobs", 20, "jobs of each pipeline")
	f.DurationVar(&o.every, "every", 3*time.Second, "time from one pipeline to the next")
	f.DurationVar(&o.duration, "duration", 20*time.Second, "how long each fleet starts jobs")
	f.IntVar(&o.clients, "clients", 100, "clients of the storm")
	f.DurationVar(&o.outage, "outage", 30*time.Second, "duration of the outage")
	f.IntVar(&o.reads, "reads", 10000, "reads of a moving branch")
	f.IntVar(&o.mirrors, "mirrors", 1000, "unchanged mirrors")
	f.DurationVar(&o.window, "unchanged-duration", 10*time.Second, "duration of requests to unchanged mirrors")
	check := func() error {
		return cmp.Or(loadgen.Positive(f, "rate", "reads", "mirrors", "outage", "unchanged-duration"),
			loadgen.AreClients(f, "clients"))
	}
	return world.Command(cmd, env, &o.program, parts, check, func(ctx context.Context, part, dir string) (*pair, error) {
		return o.open(ctx, env, part, dir)
	})
}

// parts are in the order of the report.
var parts = []world.Part[*pair]{
	{Name: "fleet", Measure: (*pair).fleet},
	{Name: "storm", Measure: (*pair).storm},
	{Name: "first-byte", Measure: (*pair).firstByte},
	{Name: "first-clone", Measure: (*pair).firstClone},
	{Name: "outage", Measure: (*pair).outageFigures},
	{Name: "stale", Measure: (*pair).stale},
	{Name: "webhook", Measure: (*pair).webhook},
	{Name: "unchanged", Measure: (*pair).unchanged},
}

// pair is an origin and a mirror that follows it.
type pair struct {
	*options
	*world.World
	env    loadgen.Env
	origin *origin
	mirror *world.Process
}

// open starts both. The origin has the repository app.git, and the mirror has nothing.
func (o *options) open(ctx context.Context, env loadgen.Env, part, dir string) (*pair, error) {
	base, err := world.New(dir, o.program)
	w := &pair{options: o, World: base, env: env}
	if err != nil {
		return w, err
	}
	if o.repo == "" {
		err = w.AddHistory(ctx, "app", 300, 100_000)
	} else {
		err = w.Add(ctx, "app", o.repo)
	}
	if err == nil {
		w.origin, err = newOrigin(ctx, base)
	}
	if err != nil {
		return w, err
	}
	w.origin.link.Shape(int64(o.rate*1e6), o.delay)
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte(webhookSecret+"\n"), 0o600); err != nil {
		return w, err
	}
	fresh := "always"
	if part == "webhook" {
		fresh = "webhook"
	}
	w.mirror, err = w.StartMirror(ctx, "mirror", w.origin.url()+"/", fmt.Sprintf("refs = [\"refs/*\"]\nfresh = %q\n"+
		"webhook_secret_file = %q\n", fresh, secret))
	return w, err
}

func (w *pair) repo() string { return w.Repository("app") }

// hydrate waits until the mirror has the whole repository.
func (w *pair) hydrate(ctx context.Context) {
	c := gitload.NewClient(w.mirror.URL, "")
	defer c.Close()
	world.Check(c.Clone(ctx, "app", 0))
	for {
		w.origin.reset()
		world.Check(c.Clone(ctx, "app", 1))
		if w.origin.count("fetch") == 0 {
			return
		}
		if !loadgen.Sleep(ctx, 200*time.Millisecond) {
			world.Check(ctx.Err())
		}
	}
}
