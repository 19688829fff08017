// Package mirror measures a mirror. A fleet of CI machines works on an origin behind a slow link, with and without the
// mirror. Further figures show what a mirror has to reach.
package mirror

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
	only     []string
	json     bool

	program world.Program
}

const help = `Starts an origin (git http-backend behind a slow link) and a mirror of it (packhorse mirror), and measures both.

The fleet is that of "packhorse-bench ci", with the same machines and jobs twice: directly at the origin, and at the
mirror. In the report, "link" is the bytes from the origin, and "origin CPU" the time of its git processes, those that
push included.

The figures:

  storm        --clients fetch one new commit at once: requests to the origin, and packs that the mirror made
  first-byte   ls-refs of a mirror that checks its origin, against ls-refs of the origin, medians of 20
  first-clone  git clone through an empty mirror against one of the origin, whole and with depth 1
  outage       20 clones per second of known commits while the origin refuses connections for --outage: failures
  stale        --reads of a branch that moves all the time: reads that miss a change made more than a second before
  webhook      from the delivery of a webhook to the new commit in the mirror's refs, median of 20
  unchanged    200 ls-remote per second on --mirrors unchanged repositories: requests to the origin and CPU of the mirror.
               The origin repeats its answers, so that it costs this machine little

--only NAME selects figures or "fleet". All times include the work of the clients on the same machine.`

// Command returns `packhorse-bench mirror`.
func Command(env loadgen.Env) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "mirror",
		Short: "Measure a mirror of an origin behind a slow link, against the origin",
		Long:  help,
		Example: `  packhorse-bench mirror
  packhorse-bench mirror --repo /srv/git/demo.git --rate 5 --only fleet
  packhorse-bench mirror --only outage --outage 10m`,
		Args: cobra.NoArgs,
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
	f.StringSliceVar(&o.only, "only", nil, "parts to measure (default: all)")
	f.BoolVar(&o.json, "json", false, "print one JSON object")
	o.program.Flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.check(); err != nil {
			return err
		}
		return loadgen.Interrupted(cmd.Context(), o.run(cmd.Context(), env))
	}
	return cmd
}

func (o *options) check() error {
	names := append(world.Names(parts), "fleet")
	for _, name := range o.only {
		if !slices.Contains(names, name) {
			return fmt.Errorf("--only %.40q: want some of %s", name, strings.Join(names, ", "))
		}
	}
	switch {
	case o.rate <= 0:
		return fmt.Errorf("--rate %v: must be positive", o.rate)
	case o.clients < 1 || o.clients > loadgen.MaxClients:
		return fmt.Errorf("--clients %d: from 1 to %d", o.clients, loadgen.MaxClients)
	case o.reads < 1 || o.mirrors < 1 || o.outage <= 0 || o.window <= 0:
		return errors.New("--reads, --mirrors, --outage and --unchanged-duration: must be positive")
	}
	return o.program.Find()
}

// parts are in the order of the report.
var parts = []world.Part[*pair]{
	{Name: "storm", Measure: (*pair).storm},
	{Name: "first-byte", Measure: (*pair).firstByte},
	{Name: "first-clone", Measure: (*pair).firstClone},
	{Name: "outage", Measure: (*pair).outageFigures},
	{Name: "stale", Measure: (*pair).stale},
	{Name: "webhook", Measure: (*pair).webhook},
	{Name: "unchanged", Measure: (*pair).unchanged},
}

func (o *options) run(ctx context.Context, env loadgen.Env) error {
	fleets := []fleetResult{}
	if len(o.only) == 0 || slices.Contains(o.only, "fleet") {
		for _, mirrored := range []bool{false, true} {
			f, err := o.fleet(ctx, env, mirrored)
			if err != nil {
				return err
			}
			fleets = append(fleets, *f)
		}
	}
	figures := []world.Figure{}
	if !slices.Equal(o.only, []string{"fleet"}) {
		var err error
		if figures, err = world.Measure(ctx, env, parts, o.only, o.open); err != nil {
			return err
		}
	}
	if o.json {
		return loadgen.WriteJSON(env.Stdout, map[string]any{"fleets": fleets, "figures": figures})
	}
	if len(fleets) > 0 {
		var rows [][]string
		for _, f := range fleets {
			number := func(v float64) string { return fmt.Sprintf("%.1f", v) }
			rows = append(rows, []string{f.Name, fmt.Sprint(f.Jobs), fmt.Sprint(f.Waiting), number(f.Job.P50),
				number(f.Job.P95), number(f.First.P50), number(f.MB), number(f.LinkMB), fmt.Sprint(f.LsRefs),
				fmt.Sprint(f.Fetches), number(f.OriginS)})
		}
		if err := loadgen.WriteTable(env.Stdout, []string{"fleet", "jobs", "waiting", "p50 ms", "p95 ms", "first ms",
			"jobs' MB", "link MB", "ls-refs", "fetches", "origin CPU s"}, rows); err != nil {
			return err
		}
	}
	return world.WriteFigures(env.Stdout, figures)
}

// pair is an origin and a mirror that follows it.
type pair struct {
	*options
	*world.World
	origin *origin
	mirror *world.Process
}

// open starts both. The origin has the repository app.git, and the mirror has nothing.
func (o *options) open(ctx context.Context, part, dir string) (*pair, error) {
	base, err := world.New(dir, o.program)
	w := &pair{options: o, World: base}
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
	w.mirror, err = w.Start(ctx, "mirror", "mirror", world.NoSearch+fmt.Sprintf("[[mirror]]\nfrom = %q\nto = \"origin\"\n"+
		"refs = [\"refs/*\"]\nfresh = %q\nwebhook_secret_file = %q\n", w.origin.url()+"/", fresh, secret), "--root",
		filepath.Join(dir, "mirrored"), "--http", "127.0.0.1:0")
	if err == nil {
		w.mirror.URL += "/origin"
	}
	return w, err
}

func (w *pair) repo() string { return w.Repository("app") }

// hydrate waits until the mirror has the whole repository.
func (w *pair) hydrate(ctx context.Context) error {
	c := gitload.NewClient(w.mirror.URL, "")
	defer c.Close()
	if err := c.Clone(ctx, "app", 0); err != nil {
		return err
	}
	for {
		w.origin.reset()
		if err := c.Clone(ctx, "app", 1); err != nil || w.origin.count("fetch") == 0 {
			return err
		}
		if !loadgen.Sleep(ctx, 200*time.Millisecond) {
			return ctx.Err()
		}
	}
}
