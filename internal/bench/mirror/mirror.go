// Package mirror measures a mirror. A fleet of CI machines works on an origin behind a slow link, with and without the
// mirror. Further figures show what a mirror has to reach.
package mirror

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
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

	server gitload.Server
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
	o.server.Flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.check(); err != nil {
			return err
		}
		return loadgen.Interrupted(cmd.Context(), o.run(cmd.Context(), env))
	}
	return cmd
}

func (o *options) check() error {
	for _, name := range o.only {
		known := name == "fleet"
		for _, figure := range figures {
			known = known || figure.name == name
		}
		if !known {
			return fmt.Errorf("--only %.40q: see --help for the parts", name)
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
	return o.server.Find()
}

// wants reports whether a part is selected.
func (o *options) wants(name string) bool {
	for _, only := range o.only {
		if only == name {
			return true
		}
	}
	return len(o.only) == 0
}

// report is the output of --json.
type report struct {
	Fleets  []fleetResult `json:"fleets"`
	Figures []figure      `json:"figures"`
}

func (o *options) run(ctx context.Context, env loadgen.Env) error {
	dir, err := os.MkdirTemp("", "packhorse-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	state := "preparing"
	defer loadgen.Progress(ctx, env.Stderr, func() string { return state })()
	if o.repo == "" {
		o.repo = filepath.Join(dir, "synthetic.git")
		if err := gitload.Synthesize(ctx, o.repo, 300, 100_000); err != nil {
			return err
		}
	}
	r := report{Fleets: []fleetResult{}, Figures: []figure{}}
	if o.wants("fleet") {
		for _, mirrored := range []bool{false, true} {
			state = fleetName(mirrored)
			f, err := o.fleet(ctx, env, filepath.Join(dir, state), mirrored)
			if err != nil {
				return err
			}
			r.Fleets = append(r.Fleets, *f)
		}
	}
	for _, part := range figures {
		if !o.wants(part.name) {
			continue
		}
		state = part.name
		w, err := o.newWorld(ctx, filepath.Join(dir, part.name), part.fresh)
		if err != nil {
			return err
		}
		found, err := part.measure(w, ctx)
		if err := errors.Join(err, w.close()); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		r.Figures = append(r.Figures, found...)
	}
	if o.json {
		return loadgen.WriteJSON(env.Stdout, r)
	}
	r.print(env.Stdout)
	return nil
}

// world is an origin and a mirror that follows it.
type world struct {
	*options
	dir    string
	origin *origin
	mirror *server
}

// newWorld starts both. The origin has the repository app.git, and the mirror has nothing.
func (o *options) newWorld(ctx context.Context, dir, fresh string) (w *world, err error) {
	w = &world{options: o, dir: dir}
	if err := os.MkdirAll(filepath.Join(dir, "origin"), 0o777); err != nil {
		return nil, err
	}
	if w.origin, err = newOrigin(ctx, filepath.Join(dir, "origin")); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.origin.close()
		}
	}()
	if err := w.origin.add(ctx, "app", o.repo); err != nil {
		return nil, err
	}
	w.origin.link.Shape(int64(o.rate*1e6), o.delay)
	w.mirror, err = start(ctx, w.origin, filepath.Join(dir, "mirror"), o.server.Program, fresh)
	return w, err
}

func (w *world) close() error {
	err := w.mirror.Stop()
	w.origin.close()
	return errors.Join(err, os.RemoveAll(w.dir))
}

func (w *world) repo() string { return filepath.Join(w.origin.root, "app.git") }

// hydrate waits until the mirror has the whole repository.
func (w *world) hydrate(ctx context.Context) error {
	c := gitload.NewClient(w.mirror.url, "")
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
