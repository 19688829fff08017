// Package lfs measures Git LFS: a server and a mirror of it, against Go's file server on the same machine.
package lfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// options are the flags of `packhorse-bench lfs`.
type options struct {
	megabytes int
	upload    int // megabytes
	runners   int
	rounds    int
	transfers int
	objects   int
	cuts      int
	gitLFS    string
	only      []string
	json      bool

	server gitload.Server
}

const help = `Starts a server with a repository whose files are in Git LFS, a mirror of that server, and Go's own file
server (packhorse-bench limit) in a process of its own. All run on this machine, and servers that are compared are
measured in turn. Values are medians of --rounds.

The parts:

  cold    --runners runners fetch one object of --mb MiB at the same time through an empty mirror. Bytes from the
          origin, which a proxy in front of it counts, and the time, against that of one download from the origin
  warm    the same object again: throughput of --runners runners against Go's file server
  cpu     CPU time of the server process for each GB against that of Go's file server, and the memory of --transfers
          transfers that wait for their clients
  batch   time of a batch request for --objects objects that are present: one process, a gateway with a storage node,
          and a mirror
  resume  git-lfs uploads an object of --upload-mb MiB through a proxy that cuts the connection --cuts times. Bytes that
          the proxy read beyond those of the object, with the ones that it dropped at a cut

Runners send what git-lfs sends, and drop the bytes that they get. The part resume needs git-lfs.`

// part is a measurement that can run alone.
type part struct {
	name    string
	measure func(w *world, ctx context.Context) ([]loadgen.Figure, error)
}

// parts are in the order of the report.
var parts = []part{
	{"cold", (*world).cold},
	{"warm", (*world).warm},
	{"cpu", (*world).cpu},
	{"batch", (*world).batch},
	{"resume", (*world).resume},
}

// Command returns `packhorse-bench lfs`.
func Command(env loadgen.Env) *cobra.Command {
	var o options
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.name
	}
	cmd := &cobra.Command{
		Use:   "lfs [PART...]",
		Short: "Measure Git LFS: a server and a mirror, against Go's file server",
		Long:  help,
		Example: `  packhorse-bench lfs
  packhorse-bench lfs cold warm --mb 1024 --runners 30
  packhorse-bench lfs resume --upload-mb 2048 --json`,
		Args:      cobra.OnlyValidArgs,
		ValidArgs: names,
	}
	f := cmd.Flags()
	f.IntVar(&o.megabytes, "mb", 1024, "size of the object in MiB")
	f.IntVar(&o.upload, "upload-mb", 2048, "size of the object of the part resume in MiB")
	f.IntVar(&o.runners, "runners", 30, "runners that fetch at the same time")
	f.IntVar(&o.rounds, "rounds", 3, "runs of each comparison")
	f.IntVar(&o.transfers, "transfers", 500, "transfers that wait for their clients")
	f.IntVar(&o.objects, "objects", 10_000, "objects of a batch request")
	f.IntVar(&o.cuts, "cuts", 10, "interruptions of the upload")
	f.StringVar(&o.gitLFS, "git-lfs", "git-lfs", "the git-lfs `PROGRAM` of the part resume")
	f.BoolVar(&o.json, "json", false, "print one JSON object")
	o.server.Flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.only = args
		if err := o.check(); err != nil {
			return err
		}
		return loadgen.Interrupted(cmd.Context(), o.run(cmd.Context(), env))
	}
	return cmd
}

func (o *options) check() error {
	for _, n := range []int{o.megabytes, o.upload, o.rounds, o.objects, o.cuts} {
		if n < 1 {
			return errors.New("--mb, --upload-mb, --rounds, --objects and --cuts: must be positive")
		}
	}
	for _, n := range []int{o.runners, o.transfers} {
		if n < 1 || n > loadgen.MaxClients {
			return fmt.Errorf("--runners %d, --transfers %d: from 1 to %d", o.runners, o.transfers, loadgen.MaxClients)
		}
	}
	return o.server.Find()
}

// report is the output of --json.
type report struct {
	Figures []loadgen.Figure `json:"figures"`
}

func (o *options) run(ctx context.Context, env loadgen.Env) error {
	dir, err := os.MkdirTemp("", "packhorse-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	state := ""
	defer loadgen.Progress(ctx, env.Stderr, func() string { return state })()
	r := report{Figures: []loadgen.Figure{}}
	for _, p := range parts {
		if len(o.only) > 0 && !slices.Contains(o.only, p.name) {
			continue
		}
		state = p.name
		figures, err := o.measure(ctx, p, filepath.Join(dir, p.name))
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		r.Figures = append(r.Figures, figures...)
	}
	if o.json {
		return loadgen.WriteJSON(env.Stdout, r)
	}
	loadgen.PrintFigures(env.Stdout, r.Figures)
	return nil
}

// measure makes a world for one part, and measures.
func (o *options) measure(ctx context.Context, p part, dir string) (figures []loadgen.Figure, err error) {
	w := &world{options: o, dir: dir}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.prepare(ctx); err != nil {
		return nil, err
	}
	figures, err = p.measure(w, ctx)
	for i := range figures {
		figures[i].Part = p.name
	}
	return figures, err
}
