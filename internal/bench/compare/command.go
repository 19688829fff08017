package compare

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/packhorse-git/packhorse/internal/bench/page"
	"github.com/packhorse-git/packhorse/internal/server/cli"
)

// comparison is the command line of `packhorse-bench compare`.
type comparison struct {
	stderr              io.Writer
	options             Options
	a, b, routes, pools []string
	by, format, unit    string
	since, until        string
	html                string
	json                bool
	confidence          float64
	shown               time.Time // time of the last progress message
}

// Command returns `packhorse-bench compare`.
func Command() *cobra.Command {
	c := &comparison{}
	cmd := &cobra.Command{
		Use:   "compare A B | compare LOG --split FIELD",
		Short: "Compare the latencies of two access logs, route by route",
		Long: `Compare reads two access logs, or one whose lines name one of two pools. It reports on which routes B is slower or
faster than A. For p50, p95 and p99 it has the sizes of both samples and a confidence interval. A verdict requires that
the interval excludes zero, for all routes at once. The effect of a different mix of routes is shown separately. Refused,
failed and cancelled requests are counted, and excluded from the latencies.

Logs are JSON of Packhorse or GitLab Workhorse, nginx's with a log_format of JSON, or Common Log Format with a duration
at the end. They may be compressed with gzip or zstd. A log is a file, a quoted pattern for a rotated set, or - for
standard input. docs/how-to/compare.md has the keys and the method.`,
		Example: `  packhorse-bench compare old.log new.log
  packhorse-bench compare 'old/access.log*' 'new/access.log*' --html report.html
  packhorse-bench compare access.log --split pool
  packhorse-bench compare --a host1.log --a host2.log --b host3.log --b host4.log --by operation
  zcat yesterday.gz | packhorse-bench compare - today.log --route '/users/*/avatar' --json`,
		Args: func(_ *cobra.Command, args []string) error { return c.arguments(args) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.parse(); err != nil {
				return cli.Usage(err)
			}
			return c.run(cmd)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&c.by, "by", "path",
		"routes by `path|operation`; only Packhorse's log has operations")
	flags.StringVar(&c.html, "html", "", "also write a page with a grid chart to `FILE`")
	flags.BoolVar(&c.json, "json", false, "print JSON")
	flags.StringVar(&c.options.Split, "split", "", "compare requests of one log by its `FIELD`, such as pool")
	flags.StringSliceVar(&c.pools, "pools", nil,
		"with --split: the two values, `A,B` (default: the two values of the log, in order)")
	flags.StringArrayVar(&c.a, "a", nil, "a `FILE` of side A; may be repeated")
	flags.StringArrayVar(&c.b, "b", nil, "a `FILE` of side B; may be repeated")
	flags.StringVar(&c.format, "format", "auto", "the logs' format: `auto|packhorse|nginx|workhorse|common`")
	flags.StringVar(&c.options.Duration, "duration", "", "the `FIELD` of the duration (default: that of the format)")
	flags.StringVar(&c.unit, "unit", "auto", "the unit of durations: `auto|s|ms|us|ns`")
	flags.StringArrayVar(&c.routes, "route", nil,
		"fold paths that match a `PATTERN` like /users/*/avatar or /assets/**; may be repeated")
	flags.IntVar(&c.options.Rows, "rows", 30, "show `N` routes, and the others as one")
	flags.StringVar(&c.since, "since", "",
		"only requests from this `TIME` on: 2026-11-22T04:00:00Z, or 2h for two hours ago")
	flags.StringVar(&c.until, "until", "", "only requests before this `TIME`")
	flags.BoolVar(&c.options.Failures, "failures", false, "include refused, failed and cancelled requests")
	flags.Float64Var(&c.confidence, "confidence", 95, "confidence of all verdicts together, in `PERCENT`")
	for name, values := range map[string][]string{
		"by": {"path", "operation"}, "format": {"auto", "packhorse", "nginx", "workhorse", "common"},
		"unit": {"auto", "s", "ms", "us", "ns"},
	} {
		fixed := cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
		if err := cmd.RegisterFlagCompletionFunc(name, fixed); err != nil {
			panic(err) // the flag is missing above
		}
	}
	return cmd
}

// arguments sets the logs.
func (c *comparison) arguments(args []string) error {
	a, b := slices.Clone(c.a), slices.Clone(c.b)
	split := c.options.Split != ""
	switch {
	case split && len(args) == 1 && len(a)+len(b) == 0:
		a = args
	case split && (len(args) > 1 || len(b) > 0):
		return errors.New("--split needs one LOG, whose lines name the side")
	case !split && len(args) == 2 && len(a)+len(b) == 0:
		a, b = args[:1], args[1:]
	case len(args) > 0 && len(a)+len(b) > 0:
		return errors.New("use --a and --b, or arguments, but not both")
	case !split && len(args) == 1:
		return errors.New("compare needs two logs, A and B, or one with --split FIELD, whose lines name a pool")
	case len(args) > 2:
		return fmt.Errorf("compare needs two logs, got %d: quote the pattern of a set of files, or use --a FILE --a FILE "+
			"--b FILE",
			len(args))
	}
	if len(a) == 0 || len(b) == 0 && !split {
		return errors.New("compare needs two logs, A and B, or one with --split FIELD")
	}
	c.options.A, c.options.B = a, b
	return nil
}

// parse parses the flags that are texts.
func (c *comparison) parse() (err error) {
	o := &c.options
	if c.by != "path" && c.by != "operation" {
		return fmt.Errorf("--by %q: use path or operation", c.by)
	}
	o.Operations = c.by == "operation"
	if o.Format, err = ParseFormat(c.format); err != nil {
		return fmt.Errorf("--format: %w", err)
	}
	if o.Unit, err = ParseUnit(c.unit); err != nil {
		return fmt.Errorf("--unit: %w", err)
	}
	for _, text := range c.routes {
		p, err := ParsePattern(text)
		if err != nil {
			return fmt.Errorf("--route: %w", err)
		}
		o.Patterns = append(o.Patterns, p)
	}
	now := time.Now()
	if o.Since, err = parseWhen(c.since, now); err != nil {
		return fmt.Errorf("--since: %w", err)
	}
	if o.Until, err = parseWhen(c.until, now); err != nil {
		return fmt.Errorf("--until: %w", err)
	}
	switch {
	case len(c.pools) > 0 && (o.Split == "" || len(c.pools) != 2 || c.pools[0] == c.pools[1] || c.pools[0] == "" ||
		c.pools[1] == ""):
		return errors.New("--pools: want two values of the field of --split, as in --split pool --pools old,new")
	case o.Rows < 1 || o.Rows > MaxRows:
		return fmt.Errorf("--rows %d: from 1 to %d", o.Rows, MaxRows)
	case !(c.confidence >= 50 && c.confidence <= 99.99):
		return fmt.Errorf("--confidence %g: from 50 to 99.99", c.confidence)
	case !o.Since.IsZero() && !o.Until.IsZero() && !o.Since.Before(o.Until):
		return errors.New("--since must be before --until")
	}
	o.Pools, o.Confidence = c.pools, c.confidence/100
	return nil
}

// parseWhen parses a time, or a duration before now. An empty text is the zero time.
func parseWhen(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", time.DateTime, "2006-01-02T15:04",
		"2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return now.Add(-d), nil
	}
	return time.Time{}, fmt.Errorf("%q: want a time like 2026-11-22T04:00:00Z or 2026-11-22, or a duration like 2h", text)
}

// run compares the logs and writes the report.
func (c *comparison) run(cmd *cobra.Command) error {
	to, err := page.Open(c.html)
	if err != nil {
		return err
	}
	defer to.Close()
	ctx := cmd.Context()
	o := &c.options
	o.Stdin, o.Workers, c.stderr = cmd.InOrStdin(), runtime.GOMAXPROCS(0), cmd.ErrOrStderr()
	clear := func() {}
	if f, ok := c.stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		o.Progress = c.progress
		clear = func() { fmt.Fprint(c.stderr, "\r\x1b[K") }
	}
	var r *Report
	ended := make(chan error, 1)
	go func() {
		var err error
		r, err = Run(ctx, *o)
		ended <- err
	}()
	select {
	case err := <-ended:
		if clear(); err != nil && ctx.Err() == nil {
			return err
		}
	case <-ctx.Done(): // a read from a pipe may block forever
	}
	if ctx.Err() != nil {
		clear()
		return errors.New("interrupted before the end of the logs: nothing was compared")
	}
	write := r.WriteText
	if c.json {
		write = r.WriteJSON
	}
	return cmp.Or(write(cmd.OutOrStdout()), writePage(to, r))
}

func writePage(to *page.File, r *Report) error {
	if to == nil {
		return nil
	}
	var b bytes.Buffer
	if err := r.WriteHTML(&b, time.Now()); err != nil {
		return err
	}
	return to.Write(b.Bytes())
}

// progress shows the progress on a terminal.
func (c *comparison) progress(p Progress) {
	if time.Since(c.shown) < 200*time.Millisecond {
		return
	}
	c.shown = time.Now()
	text := fmt.Sprintf("%.1f million lines, %s", float64(p.Lines)/1e6, cli.Printable(filepath.Base(p.File)))
	if p.Size > 0 {
		text += fmt.Sprintf(" %d %%", 100*min(p.Read, p.Size)/p.Size)
	}
	fmt.Fprintf(c.stderr, "\r%.78s\x1b[K", text)
}
